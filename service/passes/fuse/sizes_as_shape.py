"""Sizes that a group of kernels is given as numbers, beside those of its shapes, are in one shape with these.

    fused(x, m, shape([n]))   →   fused(x, shape([n, m]))     as of arange(n) + m, positions behind a cache of m

FuseTIR defines a size twice where it finds both kinds.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.ir import PrimType
from tvm.relax.expr_functor import PyExprMutator, mutator

from relaxc.service.passes.common.rewrite import with_functions

__all__ = ["SizesAsShape"]


@tvm.transform.module_pass(opt_level=0, name="SizesAsShape")
class SizesAsShape:
    """Between FuseOps and FuseTIR: rewrites groups that have a shape, and numbers before it, among their parameters."""

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with those groups and their calls; the same object if there are none."""
        functions: dict[Any, Any] = {}
        groups: dict[str, relax.GlobalVar] = {}
        for name, func in module.functions_items():
            if not isinstance(func, relax.Function) or not _has_both(func):
                functions[name] = func
                continue
            group = _as_shape(func)
            groups[name.name_hint] = renamed = relax.GlobalVar(name.name_hint)
            relax.expr._update_type(renamed, group.ty)  # as TVM's own builder does
            functions[renamed] = group
        if not groups:
            return module
        module = IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
        main = _Caller(module, groups).visit_expr(module["main"])
        return with_functions(module, {module.get_global_var("main"): main})


def _has_both(func: relax.Function) -> bool:
    is_group = bool(func.attrs and func.attrs.get("Primitive", 0)) and len(func.params) > 1
    return is_group and isinstance(func.params[-1].ty, relax.ShapeType) and any(map(_is_number, func.params))


def _is_number(value: Any) -> bool:
    return isinstance(value.ty, PrimType)


def _as_shape(group: relax.Function) -> relax.Function:
    *others, shape = group.params
    numbers = [each for each in others if _is_number(each)]
    sizes = relax.Var("sizes", relax.ShapeType([*shape.ty.values, *numbers]))
    tensors = [each for each in others if not _is_number(each)]
    return relax.Function([*tensors, sizes], group.body, group.ret_ty, group.is_pure, group.attrs)


@mutator
class _Caller(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    """Rewrites calls of the groups of these names."""

    def __init__(self, module: IRModule, groups: dict[str, relax.GlobalVar]) -> None:
        super().__init__(module)
        self.groups = groups

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Put the numbers behind the sizes of the last argument."""
        if not isinstance(call.op, relax.GlobalVar) or call.op.name_hint not in self.groups:
            return super().visit_call_(call)
        *others, shape = call.args
        numbers = [each for each in others if _is_number(each)]
        tensors = [each for each in others if not _is_number(each)]
        return relax.Call(self.groups[call.op.name_hint], [*tensors, relax.ShapeExpr([*shape.values, *numbers])])
