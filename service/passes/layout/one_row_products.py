"""Products of one row with a transposed operand, as a step of decoding has them, read the operand as it lies."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Scope, is_tensor_constant, rewrite_calls, static_shape
from relaxc.service.passes.simplify.simplify_shapes import permutation

__all__ = ["OneRowProducts"]


@tvm.transform.module_pass(opt_level=0, name="OneRowProducts")
class OneRowProducts:
    """`q[.., 1, D] @ kᵀ`, k of `[.., N, D]`, becomes the sum of `q * k` over the last axis: nothing is transposed.

    A product of one row is bound by reading k; the transpose of a cache of keys would read and write all of it first,
    against the order of its bytes. Weights, which are packed at compile time, stay products.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with sums in the place of such products; the same object if it has none."""
        return rewrite_calls(module, {"matmul": _summed})


def _summed(call: relax.Call, scope: Scope) -> relax.Expr | None:
    data = call.args[0]
    moved = scope.call(call.args[1], "relax.permute_dims")
    left, result = static_shape(data), static_shape(call)
    if moved is None or left is None or result is None or len(left) < 3 or left[-2] != 1:
        return None
    rank = moved.ty.ndim
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    dtypes = {str(each.ty.dtype) for each in (call, *call.args)}
    if permutation(moved) != swapped or dtypes != {"float32"} or is_tensor_constant(scope.value(moved.args[0])):
        return None
    terms = scope.emit(relax.op.multiply(data, moved.args[0]))
    return relax.op.expand_dims(scope.emit(relax.op.sum(terms, -1)), -2)
