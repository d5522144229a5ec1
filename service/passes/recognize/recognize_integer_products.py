"""Products of quantized operands become products of bytes, summed in int32, with the zero points in terms besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.hardware import Cpu
from relaxc.service.passes.common.constants import Array, constant
from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, static_shape
from relaxc.service.passes.precision.dtypes import BYTES
from relaxc.service.passes.simplify.fold_constants import COMPUTE
from relaxc.service.passes.simplify.simplify_shapes import permutation

__all__ = [
    "MOST_STEPS",
    "Quantized",
    "RecognizeIntegerProducts",
    "dequantized",
    "evaluated",
    "multiplied_faster",
    "quantized",
    "readable",
]

MOST_STEPS = (1 << 31) // (255 * 255)
"""Steps of the depth up to which a sum of products of bytes less their zero points fits int32."""


@tvm.transform.module_pass(opt_level=0, name="RecognizeIntegerProducts")
class RecognizeIntegerProducts:
    """`C = A @ B` of a quantized A and constant weights computes on the bytes, by a template that multiplies these.

        dequantize(a, s, z) @ dequantize(b, t, y)   →   float(a @ w - z * sum_k w + c * sum_k (a - z)) * (s * t)
        (int32(a) - z) @ (int32(b) - y)             →   a @ w - z * sum_k w + c * sum_k (a - z)

    where `w + c = b - y` fits int8, c a number a column, most often 0. The first is what QuantizeLinear and
    DequantizeLinear around an operator say (and torch's `quantized_decomposed`), the second QLinearMatMul and
    MatMulInteger. The integers are exact; the floats of the first were rounded once a product, and now once a sum.
    On `cpu` the first is done only where products of bytes are faster than those of floats, which have their weights
    dequantized at compile time; without one it is done. Where its instruction takes uint8 by int8 alone, an int8 A is
    shifted to uint8, and its zero point too; the reverse where it takes int8 alone. `takes` says of a product's depth
    and columns whether there is a template for it, which is for static sizes: others stay in floats. Without it there
    is one for all.
    """

    def __init__(self, cpu: Cpu | None = None, takes: Callable[[int, int], bool] | None = None) -> None:
        self.cpu = cpu
        self.takes = takes

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with integer products; the same object if it has none."""
        rule = partial(_product, cpu=self.cpu, takes=self.takes)
        return rewrite_calls(module, {"matmul": rule})


@dataclass(frozen=True)
class Quantized:
    """A quantized operand: its bytes, its zero point (None for 0) and its scale (None for integers)."""

    data: relax.Expr
    zero: relax.Expr | None
    scale: relax.Expr | None


def _product(
    call: relax.Call, scope: Scope, *, cpu: Cpu | None, takes: Callable[[int, int], bool] | None
) -> relax.Expr | None:
    dtype = str(call.ty.dtype)
    left, right = quantized(call.args[0], scope, dtype), _right(call.args[1], scope, dtype)
    if left is None or right is None:
        return None
    weights, scale = right
    if dtype == "float32" and cpu is not None and not multiplied_faster(cpu, weights.shape[0]):
        return None
    left = left if cpu is None else readable(left, weights.shape[0], cpu, scope)
    data_dtype = str(left.data.ty.dtype)
    if left.data.ty.ndim < 2 or planning.matmul_dtypes(data_dtype, "int8", "int32") is None:
        return None
    is_static = left.scale is None or static_shape(left.data) is not None
    if takes is not None and not (is_static and takes(*weights.shape)):
        return None
    total = _sum(left, weights, scope)
    if left.scale is None:
        return total
    if weights.shape[0] > MOST_STEPS or scale is None:
        return None
    factor = scope.emit(relax.op.multiply(relax.op.reshape(left.scale, ()), constant(scale)))
    return relax.op.multiply(scope.emit(relax.op.astype(total, "float32")), factor)


def multiplied_faster(cpu: Cpu, depth: int) -> bool:
    """Return whether products of bytes with sums of `depth` are faster on a CPU than those of floats."""
    return any(planning.multiplies_faster(cpu, (dtype, "int8"), depth, "float32") for dtype in BYTES)


def readable(left: Quantized, depth: int, cpu: Cpu, scope: Scope) -> Quantized:
    """Return the operand in bytes that an instruction of the CPU takes: unsigned for signed ones, or the reverse."""
    dtype = str(left.data.ty.dtype)
    other = next(each for each in BYTES if each != dtype)
    taken = {each: planning.has_instruction(cpu, (each, "int8"), depth) for each in BYTES}
    if taken[dtype] or not taken[other]:
        return left
    by = 128 if other == "uint8" else -128
    known = np.int32(0) if left.zero is None else evaluated(left.zero, scope)
    if known is not None:
        total = known + np.int32(by)
        zero = constant(total) if total.any() else None
    else:
        zero = scope.emit(relax.op.add(left.zero, constant(np.int32(by))))
    return Quantized(_shifted(left.data, by, other, scope), zero, left.scale)


def _shifted(data: relax.Expr, by: int, dtype: str, scope: Scope) -> relax.Expr:
    """The bytes and `by`, in the other dtype: quantized so, where they are quantized to one known zero point."""
    call = scope.call(data, "relax.quantize")
    zero = evaluated(call.args[2], scope) if call is not None else None
    if call is not None and zero is not None and zero.dtype.kind in "iu":
        moved = constant((zero.astype(np.int32) + by).astype(dtype))
        return scope.emit(relax.op.quantize(call.args[0], call.args[1], moved, int(call.attrs.axis), dtype))
    wide = scope.emit(relax.op.add(scope.emit(relax.op.astype(data, "int16")), constant(np.int16(by))))
    return scope.emit(relax.op.astype(wide, dtype))


def _sum(left: Quantized, weights: Array, scope: Scope) -> relax.Expr:
    """`(a - z) @ (w + c)` in int32."""
    shift = _shift(weights)
    narrow = (weights - shift).astype(np.int8)
    total = scope.emit(relax.op.matmul(left.data, constant(narrow), out_dtype="int32"))
    if left.zero is not None:
        columns = constant(narrow.sum(axis=0, dtype=np.int32))
        total = scope.emit(relax.op.subtract(total, scope.emit(relax.op.multiply(left.zero, columns))))
    if shift.any():
        rows = scope.emit(relax.op.sum(scope.emit(relax.op.astype(left.data, "int32")), -1, keepdims=True))
        if left.zero is not None:
            depth = constant(np.int32(weights.shape[0]))
            rows = scope.emit(relax.op.subtract(rows, scope.emit(relax.op.multiply(left.zero, depth))))
        total = scope.emit(relax.op.add(total, scope.emit(relax.op.multiply(rows, constant(shift)))))
    return total


def _shift(weights: Array) -> Array:
    """What to take from each column so that it fits int8; bytes less a zero point span no more than that."""
    low, high = weights.min(axis=0), weights.max(axis=0)
    shift: Array = np.where(high > 127, high - 127, np.where(low < -128, low + 128, 0)).astype(np.int32)
    return shift


def quantized(expr: relax.Expr, scope: Scope, dtype: str) -> Quantized | None:
    """Return the quantized operand that `expr` is in `dtype`, float32 or int32, with one scale and one zero point."""
    if dtype == "float32":
        call = dequantized(expr, scope)
        if call is None or str(call.args[0].ty.dtype) not in BYTES or not all(map(_is_one, call.args[1:])):
            return None
        known = evaluated(call.args[2], scope)
        if known is not None and np.abs(known.astype(np.int64)).max() > 255:  # sums of its share may pass int32
            return None
        zero = scope.emit(relax.op.reshape(call.args[2], ()))
        return Quantized(call.args[0], _nonzero(zero, scope), call.args[1])
    if dtype != "int32":
        return None
    zero = None
    if (less := scope.call(expr, "relax.subtract")) is not None:
        expr, zero = less.args
        shape = static_shape(zero)
        if shape is None or (shape and shape[-1] != 1) or len(shape) > expr.ty.ndim:
            return None
    wide = scope.call(expr, "relax.astype")
    if wide is None or str(wide.args[0].ty.dtype) not in BYTES:
        return None
    return Quantized(wide.args[0], zero if zero is None else _nonzero(zero, scope), None)


def dequantized(expr: relax.Expr, scope: Scope) -> relax.Call | None:
    """Return the `dequantize` that `expr` is, in fp32 throughout: one in 16 bits rounds what bytes do not."""
    call = scope.call(expr, "relax.dequantize")
    is_wide = call is not None and {str(each.ty.dtype) for each in (call, call.args[1])} == {"float32"}
    return call if is_wide else None


def _is_one(expr: relax.Expr) -> bool:
    return static_shape(expr) in ((), (1,))


def _nonzero(zero: relax.Expr, scope: Scope) -> relax.Expr | None:
    """The zero point in int32, None if it is known to be 0."""
    known = evaluated(zero, scope)
    if known is not None:
        return constant(known.astype(np.int32)) if known.any() else None
    return scope.emit(relax.op.astype(zero, "int32"))


def _right(expr: relax.Expr, scope: Scope, dtype: str) -> tuple[Array, Array | None] | None:
    """The weights `[K, N]` less their zero point in int32, and their scale, one or one for each column."""
    if dtype == "int32":
        weights = evaluated(expr, scope)
        scale = None
    else:
        moved = scope.call(expr, "relax.permute_dims")
        turned = moved is not None and permutation(moved) == [1, 0]
        call = dequantized(moved.args[0] if moved is not None and turned else expr, scope)
        parts = [evaluated(arg, scope) for arg in call.args] if call is not None else [None]
        if call is None or any(part is None for part in parts) or str(call.args[0].ty.dtype) not in BYTES:
            return None
        found = _columns(parts, int(call.attrs.axis) % max(1, call.ty.ndim), turned)
        if found is None:
            return None
        weights, scale = found
    if weights is None or weights.ndim != 2 or not weights.size or weights.dtype != np.int32:
        return None
    spread = weights.max(axis=0) - weights.min(axis=0)
    return (weights, scale) if int(spread.max()) <= 255 and int(np.abs(weights).max()) <= 255 else None


def _columns(parts: list[Any], axis: int, turned: bool) -> tuple[Array, Array] | None:
    """The weights less their zero points, turned to `[K, N]`, and the scales of the columns; None if of the rows."""
    data, scale, zero = parts
    if data.ndim != 2 or (max(scale.size, zero.size) > 1 and (axis == 0) != turned):
        return None
    along = (-1, 1) if turned else (1, -1)
    weights = data.astype(np.int32) - zero.astype(np.int32).reshape(along)
    scale = scale.astype(np.float32)
    return (weights.T if turned else weights), scale.reshape(()) if scale.size == 1 else scale


def evaluated(expr: relax.Expr, scope: Scope) -> Array | None:
    """Return the value of an expression of constants, as far as importers spell weights and zero points out."""
    known = scope.constant(expr)
    if known is not None:
        return known
    value = scope.value(expr)
    name = op_name(value)
    if name not in ("relax.astype", "relax.subtract", "relax.reshape", "relax.permute_dims"):
        return None
    tensors = [arg for arg in value.args if isinstance(arg.ty, relax.TensorType)]
    arrays = [each for arg in tensors if (each := evaluated(arg, scope)) is not None]
    return COMPUTE[name.removeprefix("relax.")](value, arrays) if len(arrays) == len(tensors) else None
