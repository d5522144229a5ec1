"""Products of operands that were quantized to 8-bit floats are computed on these, and scaled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.constants import Array, constant
from relaxc.service.passes.common.rewrite import Scope, rewrite_calls, static_shape
from relaxc.service.passes.precision.dtypes import FLOAT8
from relaxc.service.passes.recognize.recognize_integer_products import dequantized, evaluated
from relaxc.service.passes.simplify.simplify_shapes import permutation

__all__ = ["RecognizeFloat8Products"]


@tvm.transform.module_pass(opt_level=0, name="RecognizeFloat8Products")
class RecognizeFloat8Products:
    """`C = A @ B` of an A of e4m3 and constant weights of e4m3, for a device that multiplies these.

        dequantize(a, s) @ dequantize(b, t)   →   (a @ b) * (s * t)

    s is one scale, or one a row; t one, or one a column. Sums are fp32. `takes` says of a product's depth and columns
    whether there is a template for it, which is for static sizes: others stay in floats.
    """

    def __init__(self, takes: Callable[[int, int], bool]) -> None:
        self.takes = takes

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with products of 8-bit floats; the same object if it has none."""
        return rewrite_calls(module, {"matmul": partial(_product, takes=self.takes)})


def _product(call: relax.Call, scope: Scope, *, takes: Callable[[int, int], bool]) -> relax.Expr | None:
    if str(call.ty.dtype) != "float32":
        return None
    left, right = dequantized(call.args[0], scope), _weights(call.args[1], scope)
    if left is None or right is None or str(left.args[0].ty.dtype) != FLOAT8:
        return None
    data, (weights, columns) = left.args[0], right
    scale = _of_rows(left, scope)
    shape = static_shape(data)
    if scale is None or shape is None or len(shape) < 2 or not takes(*weights.shape):
        return None
    total = scope.emit(relax.op.matmul(data, constant(weights), out_dtype="float32"))
    known = evaluated(scale, scope)
    if known is not None and known.size == 1:
        return relax.op.multiply(total, constant((known.reshape(()) * columns).astype(np.float32)))
    if columns.size == 1:
        return relax.op.multiply(total, scope.emit(relax.op.multiply(scale, constant(columns.reshape(())))))
    return relax.op.multiply(scope.emit(relax.op.multiply(total, scale)), constant(columns))


def _of_rows(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """The scale of A: one number, or one a row, which broadcasts over its columns."""
    scale, shape = call.args[1], static_shape(call.args[1])
    if shape in ((), (1,)):
        return scope.emit(relax.op.reshape(scale, ()))
    axis, rank = int(call.attrs.axis) % call.ty.ndim, call.ty.ndim
    if shape is None or len(shape) != 1 or axis == rank - 1:
        return None
    return scope.emit(relax.op.reshape(scale, [shape[0] if at == axis else 1 for at in range(rank)]))


def _weights(expr: relax.Expr, scope: Scope) -> tuple[Array, Array] | None:
    """The weights `[K, N]` in e4m3, and their scale, one or one a column."""
    moved = scope.call(expr, "relax.permute_dims")
    turned = moved is not None and permutation(moved) == [1, 0]
    call = dequantized(moved.args[0] if moved is not None and turned else expr, scope)
    if call is None or str(call.args[0].ty.dtype) != FLOAT8:
        return None
    data, scale = evaluated(call.args[0], scope), evaluated(call.args[1], scope)
    if data is None or scale is None or data.ndim != 2 or not data.size:
        return None
    if scale.size > 1 and (int(call.attrs.axis) % 2 == 0) != turned:
        return None
    scale = scale.astype(np.float32).reshape(() if scale.size == 1 else (-1,))
    return np.ascontiguousarray(data.T if turned else data), scale
