"""Multiplications and additions by constants after a convolution or matmul move into its weights and bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.constants import Array, constant, numpy_dtype
from relaxc.service.passes.common.rewrite import Scope, dims_equal, rewrite_calls
from relaxc.service.passes.precision.dtypes import FLOAT8

__all__ = ["FoldScale"]

WEIGHTED = (
    "relax.matmul",
    *(f"relax.nn.conv{rank}d{suffix}" for rank in (1, 2, 3) for suffix in ("", "_transpose")),
)
MOVES = ("relax.permute_dims", "relax.reshape")


@tvm.transform.module_pass(opt_level=0, name="FoldScale")
class FoldScale:
    """Moves constant factors towards the weights, where they cost nothing.

    - `conv(x, W) * s → conv(x, W * s)` and `matmul(x, W) * s → matmul(x, W * s)`, `s` along the output channel;
    - `(y + b) * s → y * s + b * s` where `y` is one of these;
    - `reshape(y) * c → reshape(y * c)`, `permute_dims(y) * c → permute_dims(y * c)` for a number `c`;
    - `(y + b) + c → y + (b + c)`, `(y * b) * c → y * (b * c)`, `y - c → y + (-c)`.

    Only where nothing else reads the intermediate value, and never into a weight that is then not finite, or so small
    that its dtype has fewer digits for it. Constants are
    not merged where `y ∘ b` rounds what the result then lacks, as `(y + 2**23) - 2**23` does, or overflows alone.
    Known as FoldScaleAxis and, with FoldBatchNorm before it, as batch-norm folding.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with constant factors in the weights."""
        return rewrite_calls(module, {"multiply": _multiply, "divide": _divide, "add": _add, "subtract": _subtract})


def _is_float(call: relax.Call) -> bool:
    return str(call.ty.dtype) in ("float32", "float16", "bfloat16", "float64")


def _split(call: relax.Call, scope: Scope) -> tuple[relax.Expr, Array] | None:
    """The variable operand and the constant one of a commutative operator."""
    left, right = call.args
    if (array := scope.constant(right)) is not None:
        return left, array
    if (array := scope.constant(left)) is not None:
        return right, array
    return None


def _multiply(call: relax.Call, scope: Scope) -> relax.Expr | None:
    parts = _split(call, scope)
    if parts is None or not _is_float(call):
        return None
    return _scaled(parts[0], np.asarray(parts[1], "float64"), call, scope)


def _divide(call: relax.Call, scope: Scope) -> relax.Expr | None:
    array = scope.constant(call.args[1])
    if array is None or not _is_float(call) or (array == 0).any():
        return None
    return _scaled(call.args[0], 1.0 / np.asarray(array, "float64"), call, scope, only_weights=True)


def _scaled(
    value: relax.Expr, factor: Array, call: relax.Call, scope: Scope, *, only_weights: bool = False
) -> relax.Expr | None:
    """`value * factor` with the factor moved towards the weights; None where it cannot move."""
    if not scope.used_once(value) or not _same_shape(call, value):
        return None
    dtype = str(call.ty.dtype)
    if (weighted := _scaled_weights(value, factor, scope)) is not None:
        return weighted
    if (sum_ := scope.call(value, "relax.add")) is not None:
        parts = _split(sum_, scope)
        if parts is None or not scope.used_once(parts[0]) or not _same_shape(call, parts[0]):
            return None
        weighted = _scaled_weights(parts[0], factor, scope)
        shift = np.asarray(parts[1], "float64") * factor
        if weighted is None or not _same_range(shift, dtype) or not _keeps_digits(shift, dtype, None):
            return None
        return relax.op.add(scope.emit(weighted), constant(shift, dtype))
    if factor.size == 1 and (move := scope.call(value, *MOVES)) is not None and _leads_to_weights(move.args[0], scope):
        inner = scope.emit(relax.op.multiply(move.args[0], constant(factor.reshape(()), dtype)))
        return relax.Call(move.op, [inner, *move.args[1:]], move.attrs)
    if (product := scope.call(value, "relax.multiply")) is not None and not only_weights:
        return _merged(product, factor, relax.op.multiply, np.multiply, dtype, scope)
    return None


def _leads_to_weights(value: relax.Expr, scope: Scope) -> bool:
    """Whether a factor on `value` would end in weights; without this it could go up and down for nothing."""
    while scope.used_once(value) and (move := scope.call(value, *MOVES)) is not None:
        value = move.args[0]
    if not scope.used_once(value):
        return False
    if (sum_ := scope.call(value, "relax.add")) is not None:
        parts = _split(sum_, scope)
        if parts is None or not scope.used_once(parts[0]):
            return False
        value = parts[0]
    found = scope.call(value, *WEIGHTED)
    return found is not None and scope.constant(found.args[1]) is not None


def _scaled_weights(value: relax.Expr, factor: Array, scope: Scope) -> relax.Expr | None:
    found = scope.call(value, *WEIGHTED)
    weights = None if found is None else scope.constant(found.args[1])
    if found is None or weights is None:
        return None
    along = _along_weights(found, weights, factor)
    if along is None:
        return None
    dtype = str(found.args[1].ty.dtype)
    if dtype == FLOAT8:  # three digits: the scale is what they lack
        return None
    scaled = np.asarray(weights, "float64" if dtype == "float64" else "float32") * along
    others = tuple(axis for axis in range(scaled.ndim) if along.shape[axis] == 1 or along.size == 1)
    if not _same_range(scaled, dtype) or not _keeps_digits(scaled, dtype, others):
        return None
    return relax.Call(found.op, [found.args[0], constant(scaled, dtype)], found.attrs)


def _along_weights(found: relax.Call, weights: Array, factor: Array) -> Array | None:
    """The factor shaped to multiply the weights, if it varies along the output channel only."""
    rank = found.ty.ndim
    shape = (1,) * (rank - factor.ndim) + factor.shape
    if len(shape) > rank:
        return None
    if found.op.name == "relax.matmul":
        channel, kernel_axis = rank - 1, weights.ndim - 1
        if weights.ndim < 2 or found.args[0].ty.ndim < 2:
            return None
    else:
        if int(found.attrs.groups) != 1 and found.op.name.endswith("transpose"):
            return None
        channel = str(found.attrs.out_layout or found.attrs.data_layout).find("C")
        kernel_axis = str(found.attrs.kernel_layout).find("O")
    if any(size != 1 for axis, size in enumerate(shape) if axis != channel):
        return None
    if factor.size not in (1, weights.shape[kernel_axis]):
        return None
    wanted = [1] * weights.ndim
    wanted[kernel_axis] = factor.size
    return factor.reshape(wanted)


def _same_shape(call: relax.Call, value: relax.Expr) -> bool:
    """Whether the constant operand did not broadcast the value."""
    shapes = (call.ty.shape, value.ty.shape)
    return all(isinstance(shape, relax.ShapeExpr) for shape in shapes) and dims_equal(*shapes)


def _same_range(array: Array, dtype: str) -> bool:
    """Whether every number is finite in the dtype."""
    return bool((np.abs(array) <= float(ml_dtypes.finfo(numpy_dtype(dtype)).max)).all())


def _keeps_digits(array: Array, dtype: str, axes: tuple[int, ...] | None) -> bool:
    """Whether the dtype rounds the numbers along `axes` as it rounds others, and not as what is too small for it."""
    limits = ml_dtypes.finfo(numpy_dtype(dtype))
    if not ((array != 0) & (np.abs(array) < float(limits.smallest_normal))).any():
        return True
    exact = np.asarray(array, "float64")
    apart = exact - exact.astype(numpy_dtype(dtype)).astype("float64")
    return bool((np.square(apart).sum(axes) <= np.square(exact * float(limits.eps) / 2).sum(axes)).all())


def _merged(inner: relax.Call, array: Array, build: Any, combine: Any, dtype: str, scope: Scope) -> relax.Expr | None:
    """`(y ∘ b) ∘ c → y ∘ (b ∘ c)` where the merged constant is no larger than the two and finite."""
    parts = _split(inner, scope)
    if parts is None:
        return None
    with np.errstate(all="ignore"):
        merged = combine(np.asarray(parts[1], "float64"), np.asarray(array, "float64"))
    if merged.size > max(parts[1].size, array.size) or not _same_range(merged, dtype):
        return None
    each = [np.abs(np.asarray(value, "float64")) for value in (merged, parts[1], array)]
    if not (_usual(each, dtype) if build is relax.op.multiply else _adds_up(each, dtype)):
        return None
    return build(parts[0], constant(merged, dtype))


def _usual(factors: Sequence[Array], dtype: str) -> bool:
    """Whether products by these overflow, or lose digits below the least number, about where the merged one does."""
    most = math.sqrt(float(ml_dtypes.finfo(numpy_dtype(dtype)).max))
    return all(bool(((each <= most) & (each >= 1 / most)).all()) for each in factors)


def _adds_up(sizes: Sequence[Array], dtype: str) -> bool:
    """Whether the second and the third are near the size of the first, their sum, so that adding one rounds no more.

    A third of the digits may cancel out: of a bias and a batch norm's shift, as large and of other signs, some do in a
    few channels. Of the constants of a sum that is there to round, nothing is left.
    """
    merged, *parts = sizes
    if not merged.size:
        return True
    digits = int(ml_dtypes.finfo(numpy_dtype(dtype)).nmant) + 1
    typical = math.sqrt(float(np.mean(np.square(merged))))
    return all(bool((each <= 2 ** (digits // 3) * typical).all()) for each in parts)


def _add(call: relax.Call, scope: Scope) -> relax.Expr | None:
    parts = _split(call, scope)
    if parts is None or not _is_float(call) or not scope.used_once(parts[0]) or not _same_shape(call, parts[0]):
        return None
    inner = scope.call(parts[0], "relax.add")
    return None if inner is None else _merged(inner, parts[1], relax.op.add, np.add, str(call.ty.dtype), scope)


def _subtract(call: relax.Call, scope: Scope) -> relax.Expr | None:
    array = scope.constant(call.args[1])
    if array is None or not _is_float(call) or scope.constant(call.args[0]) is not None:
        return None
    return relax.op.add(call.args[0], constant(-array))
