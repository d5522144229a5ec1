"""Of two products of which one gates the other, the one that goes through memory is stored in 16 bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax, te, tirx

from service.passes.common.rewrite import Scope, rewrite_calls
from service.passes.precision.store_slices_low import product_dtype

__all__ = ["StoreGatesLow"]

_ELEMENTWISE = {"op_pattern": 0}


@tvm.transform.module_pass(opt_level=0, name="StoreGatesLow")
class StoreGatesLow:
    """`silu(x @ V) * (x @ W) → gated(x @ V, cast₁₆(x @ W))`, the cast at the later one.

    FuseOps has `gated`, which is one operator with the casts and the function, in the kernel of the first product; with
    operators of their own it would put the cast there as well. The later product goes through memory: rounded as a
    program in 16 bits rounds what its linear layers give.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with such products rounded; the same object if it has none."""
        functions = [function for _, function in module.functions_items() if isinstance(function, relax.Function)]
        bound = [binding.var for each in functions for block in each.body.blocks for binding in block.bindings]
        order = {var: index for index, var in enumerate(bound)}
        return rewrite_calls(module, {"multiply": partial(_gate, order=order)}, rounds=1)


def _gate(call: relax.Call, scope: Scope, *, order: dict[Any, int]) -> relax.Expr | None:
    for gate, other in (call.args, call.args[::-1]):
        function = scope.call(gate, "relax.nn.silu")
        if function is None or not (scope.used_once(gate) and scope.used_once(other)):
            continue
        given = [function.args[0], other]
        dtypes = {product_dtype(each, scope) for each in given}
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
