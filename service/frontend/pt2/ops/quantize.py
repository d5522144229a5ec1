"""torch's `quantized_decomposed`: quantization for a tensor or for each index of an axis. Halves round to even."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter, torch_dtype
from relaxc.service.frontend.pt2.ops.registry import converts

op = relax.op

_RANGE = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


@converts("quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor")
def _quantize(em: Emitter, x: Any, scale: Any, zero: Any, low: int, high: int, dtype: Any) -> Any:
    return _quantized(em, x, _inverse(em, scale), zero, 0, low, high, dtype)


@converts("quantized_decomposed.quantize_per_channel.default")
def _quantize_channels(em: Emitter, x: Any, scales: Any, zeros: Any, axis: int, low: int, high: int, dtype: Any) -> Any:
    shape = [-1 if i == axis else 1 for i in range(em.rank(x))]
    return _quantized(em, x, em(op.reshape(_inverse(em, scales), shape)), zeros, axis, low, high, dtype)


def _inverse(em: Emitter, scale: Any) -> Any:
    """`1 / scale`, which torch multiplies by: its last digit decides halves."""
    if isinstance(scale, float):
        return em.const(1.0 / scale, "float32")
    return em.cast(em(op.divide(em.const(1, em.dtype(scale)), scale)), "float32")


def _quantized(em: Emitter, x: Any, inverse: Any, zero: Any, axis: int, low: int, high: int, dtype: Any) -> Any:
    name = torch_dtype(dtype)
    if name not in _RANGE:
        raise em.refuse(f"quantization to {name}")
    scaled = em(op.multiply(em.cast(x, "float32"), inverse))
    result = em(op.quantize(scaled, em.const(1, "float32"), _point(em, zero), axis, name))
    if low > _RANGE[name][0]:
        result = em(op.maximum(result, em.const(low, name)))
    return em(op.minimum(result, em.const(high, name))) if high < _RANGE[name][1] else result


def _point(em: Emitter, zero: Any) -> Any:
    """A zero point as Relax takes it; torch has them in int64, and None for 0."""
    if zero is None:
        return em.const(0, "int32")
    return em.const(zero, "int32") if isinstance(zero, int) else em.cast(zero, "int32")


@converts("quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor")
def _dequantize(
    em: Emitter, x: Any, scale: Any, zero: Any, low: int, high: int, dtype: Any, out_dtype: Any = None
) -> Any:
    del low, high, dtype, out_dtype
    return _dequantized(em, x, scale, zero, 0)


@converts("quantized_decomposed.dequantize_per_channel.default")
def _dequantize_channels(
    em: Emitter, x: Any, scales: Any, zeros: Any, axis: int, low: int, high: int, dtype: Any, out_dtype: Any = None
) -> Any:
    del low, high, dtype, out_dtype
    return _dequantized(em, x, scales, zeros, axis)


def _dequantized(em: Emitter, x: Any, scale: Any, zero: Any, axis: int) -> Any:
    """`(x - zero) * scale`, in the node's dtype, which for 16 bits torch also computes in."""
    if em.dtype(x) not in (*_RANGE, "int32"):
        raise em.refuse(f"dequantization of {em.dtype(x)}")
    if em.out_dtype() != "float32":
        raise em.refuse(f"dequantization to {em.out_dtype()}")
    wide = em.const(np.float32(scale), "float32") if isinstance(scale, float) else em.cast(scale, "float32")
    return em(op.dequantize(x, wide, _point(em, zero), axis, "float32"))


@converts("quantized_decomposed.dequantize_per_channel_group.default")
def _dequantize_groups(
    em: Emitter,
    x: Any,
    scales: Any,
    zeros: Any,
    low: int,
    high: int,
    dtype: Any,
    group: int,
    out_dtype: Any = None,
) -> Any:
    """Groups of the columns of a matrix, each with a scale and a zero point: `[rows, columns / group]`."""
    del low, high, dtype, out_dtype
    rows, columns = em.static_shape(x, "a dequantization in groups")
    if zeros is not None and not em.dtype(zeros).startswith("int"):
        raise em.refuse(f"zero points in {em.dtype(zeros)}")
    if group < 1 or columns % group:
        raise em.refuse(f"groups of {group} of {columns} columns")
    count = rows * columns // group
    points = None if zeros is None else em(op.reshape(zeros, (count,)))
    parts = em(op.reshape(x, (count, group))), em(op.reshape(scales, (count,)))
    return em(op.reshape(_dequantized(em, *parts, points, 0), (rows, columns)))


@converts("aten._weight_int8pack_mm.default")
def _int8_weights(em: Emitter, x: Any, weight: Any, scales: Any) -> Any:
    """`y[m, n] = sum over k of x[m, k] * weight[n, k] * scales[n]`."""
    wide = em(op.dequantize(weight, em.cast(scales, "float32"), em.const(0, "int32"), 0, "float32"))
    product = em(op.matmul(em.cast(x, "float32"), em(op.permute_dims(wide, [1, 0]))))
    return em.cast(product, em.out_dtype())
