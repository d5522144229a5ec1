"""The blocks of kernels that have a plan, or that a template has described, keep what they are to the template."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, tirx

from relaxc.schedules.cpu.attention.form import MASKED
from relaxc.schedules.ir.roles import with_roles
from relaxc.schedules.plan import plan_of
from relaxc.service.passes.common.rewrite import with_functions

__all__ = ["KeepRoles"]


@tvm.transform.module_pass(opt_level=0, name="KeepRoles")
class KeepRoles:
    """`sblock("pad")` → the same with the role `pad`, in the phase that makes it: its name is of no use later."""

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with roles; the same object if no PrimFunc is a template's."""
        functions = [(var, func) for var, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
        return with_functions(module, {var: with_roles(func) for var, func in functions if _is_described(func)})


def _is_described(func: tirx.PrimFunc) -> bool:
    return plan_of(func) is not None or (func.attrs is not None and MASKED in func.attrs)
