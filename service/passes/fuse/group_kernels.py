"""Calls that one kernel computes become a group, whose call has the nodes of all of them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.origins import through_groups

__all__ = ["GroupKernels"]


@tvm.transform.module_pass(opt_level=0, name="GroupKernels")
class GroupKernels:
    """FuseOps, which makes new variables for what it groups."""

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with groups."""
        return through_groups(module, relax.transform.FuseOps()(module))
