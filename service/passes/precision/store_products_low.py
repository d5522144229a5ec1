"""The result of a product that goes through memory is stored in 16 bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax, te, tirx

from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls
from relaxc.service.passes.precision.dtypes import is_low

__all__ = ["StoreProductsLow"]

_ELEMENTWISE = {"op_pattern": 0}


@tvm.transform.module_pass(opt_level=0, name="StoreProductsLow")
class StoreProductsLow:
    """Rounds what products give to other kernels, as a program in 16 bits rounds what its linear layers give.

    It is half as much to write and to read then.

    - `slice(x₁₆ @ W + b) → cast₃₂(slice(cast₁₆(x₁₆ @ W + b)))`, where slices are all that reads it: no kernel computes
      a product and takes it apart.
    - `silu(x @ V) * (x @ W) → gated(x @ V, cast₁₆(x @ W))`, the cast at the later one. FuseOps has `gated`, which is
      one operator with the casts and the function, in the kernel of the first product; with operators of their own it
      would put the cast there as well.

    A sum `x₁₆ @ W + b` is rounded where the user `asked` for 16 bits: a program may have added in float32.
    """

    def __init__(self, *, asked: bool = False) -> None:
        self.asked = asked

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with such products rounded; the same object if it has none."""
        sliced = {var for function in _functions(module) for var in _only_sliced(function)}
        if sliced:
            module = rewrite_calls(module, {"strided_slice": partial(_slice, sliced=sliced, sums=self.asked)}, rounds=1)
        bound = [binding.var for each in _functions(module) for block in each.body.blocks for binding in block.bindings]
        order = {var: index for index, var in enumerate(bound)}
        return rewrite_calls(module, {"multiply": partial(_gate, order=order, sums=self.asked)}, rounds=1)


def _functions(module: IRModule) -> list[relax.Function]:
    return [function for _, function in module.functions_items() if isinstance(function, relax.Function)]


def _only_sliced(function: relax.Function) -> set[Any]:
    """The variables that nothing reads but slices."""
    sliced: set[Any] = set()
    others: set[Any] = set(relax.analysis.free_vars(function.body.body))
    for block in function.body.blocks:
        for binding in block.bindings:
            is_slice = isinstance(binding, relax.VarBinding) and op_name(binding.value) == "relax.strided_slice"
            read = sliced if is_slice else others
            read.update(relax.analysis.free_vars(binding.value))
    return sliced - others


def _slice(call: relax.Call, scope: Scope, *, sliced: set[Any], sums: bool) -> relax.Expr | None:
    data, *rest = call.args
    dtype = _product_dtype(data, scope, sums) if data in sliced else None
    if dtype is None:
        return None
    narrow = scope.emit(relax.op.astype(data, dtype))
    return relax.op.astype(scope.emit(relax.Call(call.op, [narrow, *rest], call.attrs)), "float32")


def _product_dtype(expr: relax.Expr, scope: Scope, sums: bool) -> str | None:
    """The 16-bit dtype of the operands of the fp32 product that `expr` is, with `sums` with a constant added."""
    if str(expr.ty.dtype) != "float32":
        return None
    total = scope.call(expr, "relax.add")
    if total is not None and sums:
        left, right = total.args
        expr = right if scope.constant(left) is not None else left
        if expr.same_as(left) and scope.constant(right) is None:
            return None
    found = scope.call(expr, "relax.matmul")
    return str(found.args[0].ty.dtype) if found is not None and is_low(found.args[0]) else None


def _gate(call: relax.Call, scope: Scope, *, order: dict[Any, int], sums: bool) -> relax.Expr | None:
    for gate, other in (call.args, call.args[::-1]):
        function = scope.call(gate, "relax.nn.silu")
        if function is None or not (scope.used_once(gate) and scope.used_once(other)):
            continue
        given = [function.args[0], other]
        dtypes = {_product_dtype(each, scope, sums) for each in given}
        if (
            len(dtypes) != 1
            or None in dtypes
            or not scope.used_once(given[0])
            or not all(each in order for each in given)
        ):
            continue
        later = max((0, 1), key=lambda at: order[given[at]])
        given[later] = scope.emit(relax.op.astype(given[later], dtypes.pop()))
        return scope.emit_te(_gated, *given, name="gated", attrs=_ELEMENTWISE)
    return None


def _gated(gate: te.Tensor, value: te.Tensor) -> te.Tensor:
    """Compute `silu(gate) * value` in fp32."""

    def product(*at: tirx.Var) -> tirx.PrimExpr:
        x = gate[at].astype("float32")
        return x * tirx.sigmoid(x) * value[at].astype("float32")

    return te.compute(gate.shape, product, name="gated")
