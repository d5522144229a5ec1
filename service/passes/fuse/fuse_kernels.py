"""Groups of calls become PrimFuncs, each with the `Kernel` that it is."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax, tirx

from relaxc.schedules.ir.describe import Describer, Tensor, whole_of
from relaxc.schedules.ir.kernel import KERNEL, Kernel
from relaxc.service.passes.common.rewrite import op_name, with_functions

__all__ = ["FuseKernels"]


@tvm.transform.module_pass(opt_level=0, name="FuseKernels")
class FuseKernels:
    """FuseTIR, behind FuseOps. A kernel is described while its group is a function of calls, one after another.

    What is behind a convolution is then what FuseOps put there, and not what the graph looked like before.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with a PrimFunc in the place of each group."""
        groups = {str(var.name_hint): func for var, func in module.functions_items() if _is_group(func)}
        kernels = {name: _kernel(module, func) for name, func in groups.items()}
        module = relax.transform.FuseTIR()(module)
        found = {}
        for var, func in module.functions_items():
            if str(var.name_hint) in kernels and isinstance(func, tirx.PrimFunc):
                kernel = kernels[str(var.name_hint)] or whole_of(func)
                found[var] = func.with_attr(KERNEL, kernel.to_json())
        return with_functions(module, found)


def _is_group(func: Any) -> bool:
    return isinstance(func, relax.Function) and bool(func.attrs and func.attrs.get("Primitive", 0))


def _kernel(module: IRModule, group: relax.Function) -> Kernel | None:
    """The kernel of a group; None where it is more than calls of PrimFuncs that give tensors."""
    describer = Describer()
    values: dict[Any, list[int]] = {}
    for param in group.params:
        _values(param, values, describer)
    for binding in [binding for block in group.body.blocks for binding in block.bindings]:
        value = binding.value
        if op_name(value) == "relax.call_tir":
            inputs = [_values(field, values, describer)[0] for field in value.args[1].fields]
            values[binding.var] = describer.call(module[value.args[0]], inputs, _tensors(binding.var.ty))
        elif isinstance(value, relax.TupleGetItem):
            values[binding.var] = [_values(value.tuple_value, values, describer)[int(value.index)]]
        elif isinstance(value, relax.Tuple):
            values[binding.var] = [each for field in value.fields for each in _values(field, values, describer)]
        elif isinstance(value, relax.Var) and value in values:
            values[binding.var] = values[value]
        else:
            return None
    return describer.kernel(_values(group.body.body, values, describer))


def _values(expr: relax.Expr, values: dict[Any, list[int]], describer: Describer) -> list[int]:
    if expr not in values:
        values[expr] = [describer.operand(each) for each in _tensors(expr.ty)]
    return values[expr]


def _tensors(ty: Any) -> list[Tensor]:
    return [_tensor(each) for each in (ty.fields if isinstance(ty, relax.TupleType) else [ty])]


def _tensor(ty: Any) -> Tensor:
    """A tensor's, or a number's."""
    shape = getattr(ty, "shape", None)
    return str(getattr(ty, "dtype", "")), list(shape.values) if isinstance(shape, relax.ShapeExpr) else []
