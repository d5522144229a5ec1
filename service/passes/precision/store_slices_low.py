"""The result of a product that is only read in slices is stored in 16 bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax

from service.passes.common.rewrite import Scope, op_name, rewrite_calls
from service.passes.precision.dtypes import is_low

__all__ = ["StoreSlicesLow", "product_dtype"]


@tvm.transform.module_pass(opt_level=0, name="StoreSlicesLow")
class StoreSlicesLow:
    """`slice(x₁₆ @ W + b) → cast₃₂(slice(cast₁₆(x₁₆ @ W + b)))`, where slices are all that reads it.

    No kernel computes a product and takes it apart, so it goes through memory: rounded as a program in 16 bits rounds
    what its linear layers give, it is half as much to write and to read.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with such products rounded; the same object if it has none."""
        sliced = {var for _, function in module.functions_items() for var in _only_sliced(function)}
        return rewrite_calls(module, {"strided_slice": partial(_slice, sliced=sliced)}, rounds=1) if sliced else module


def _only_sliced(function: Any) -> set[Any]:
    """The variables that nothing reads but slices."""
    if not isinstance(function, relax.Function):
        return set()
    sliced: set[Any] = set()
    others: set[Any] = set(relax.analysis.free_vars(function.body.body))
    for block in function.body.blocks:
        for binding in block.bindings:
            is_slice = isinstance(binding, relax.VarBinding) and op_name(binding.value) == "relax.strided_slice"
            read = sliced if is_slice else others
            read.update(relax.analysis.free_vars(binding.value))
    return sliced - others


def _slice(call: relax.Call, scope: Scope, *, sliced: set[Any]) -> relax.Expr | None:
    data, *rest = call.args
    dtype = product_dtype(data, scope) if data in sliced else None
    if dtype is None:
        return None
    narrow = scope.emit(relax.op.astype(data, dtype))
    return relax.op.astype(scope.emit(relax.Call(call.op, [narrow, *rest], call.attrs)), "float32")


def product_dtype(expr: relax.Expr, scope: Scope) -> str | None:
    """Return the 16-bit dtype of the operands of the fp32 product that `expr` is, or that a constant is added to."""
    if str(expr.ty.dtype) != "float32":
        return None
    total = scope.call(expr, "relax.add")
    if total is not None:
        left, right = total.args
        expr = right if scope.constant(left) is not None else left
        if expr.same_as(left) and scope.constant(right) is None:
            return None
    found = scope.call(expr, "relax.matmul")
    return str(found.args[0].ty.dtype) if found is not None and is_low(found.args[0]) else None
