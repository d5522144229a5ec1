"""Quantization: linear, dynamic, and products of quantized tensors. Halves round to even, results saturate."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from relaxc.service.codes import FORMATS
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.codes import narrowed, widened
from relaxc.service.frontend.onnx.ops.common import FLOAT8, aligned, cast, permuted, reshaped, scalar
from relaxc.service.frontend.onnx.ops.conv import add_bias, convolution, shifted, spatial_padding
from relaxc.service.frontend.onnx.ops.registry import op

__all__ = ["blocked", "dynamic_codes", "saturated"]

_RANGE = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def _spread(node: Node, index: int, axis: int) -> Any:
    """A scale or zero point, for the whole tensor, for one axis, or for blocks of it, in a shape that broadcasts."""
    x, rank = node.tensor(index), node.rank(0)
    shape = node.shape(index)
    block = node.attr("block_size", 0)
    if block:
        apart = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
        wide = [*shape[: axis + 1], block, *shape[axis + 1 :]]
        x = node.emit(relax.op.broadcast_to(reshaped(node, x, apart), relax.ShapeExpr(wide)))
        x = reshaped(node, x, [*shape[:axis], shape[axis] * block, *shape[axis + 1 :]])
        size = node.shape(0)[axis]
        if not isinstance(size, int):
            raise Refused("blocks along an axis of symbolic size")
        return x if size == shape[axis] * block else node.emit(relax.op.strided_slice(x, [axis], [0], [size], [1]))
    if shape in ([], [1]) or rank == 0:
        return reshaped(node, x, [])
    return reshaped(node, x, [shape[0] if i == axis else 1 for i in range(rank)])


def _parameters(node: Node, axis: int, dtype: str) -> tuple[Any, Any] | None:
    """The scale and the zero point as Relax's own operators take them; None for blocks, which they do not have."""
    if node.attr("block_size", 0) and node.shape(1) not in ([], [1]):
        return None
    scale = node.emit(cast(node.tensor(1), "float32"))
    if dtype == FLOAT8:
        return (scale, relax.const(0, "int32")) if _has_no_zero_point(node) else None
    return scale, node.tensor(2) if node.has(2) else relax.const(0, dtype)


def _has_no_zero_point(node: Node) -> bool:
    return not node.has(2) or (node.is_known(2) and not node.inputs[2].array.astype("float32").any())


def _axis(node: Node) -> int:
    rank = node.rank(0)
    axis = node.attr("axis", 1)
    return int(axis % rank) if rank > 1 or (axis < 0 and rank) else 0


def blocked(node: Node, codes: Any, scales: Any, zeros: Any, block: int, *, turned: bool) -> Any:
    """Return `W[n, k] = (codes[n, k] - zeros[n, k / block]) * scales[n, k / block]`, as `W[k, n]` if `turned`.

    Zero points are as many as scales, or one for all.
    """
    rows, depth = node.shape_of(codes)
    parts = [reshaped(node, codes, [rows * depth // block, block]), reshaped(node, scales, [rows * depth // block])]
    zeros = reshaped(node, zeros, [rows * depth // block] if node.shape_of(zeros) else [])
    steps = node.emit(relax.op.dequantize(*parts, zeros, 0, "float32"))
    whole = reshaped(node, steps, [rows, depth])
    return permuted(node, whole, [1, 0]) if turned else whole


def _round(node: Node, x: Any) -> Any:
    return node.te(lambda data: te.compute(data.shape, lambda *i: tirx.nearbyint(data(*i)), name="round"), x)


def saturated(node: Node, x: Any, zero: Any | None, dtype: str) -> Any:
    """Return `saturate(round(x) + zero)`, x a float, as a quantization by 1 where one zero point is for all."""
    if dtype not in _RANGE:
        raise Refused(f"quantization to {dtype}")
    if zero is None or node.shape_of(zero) in ([], [1]):
        zero = relax.const(0, dtype) if zero is None else zero
        x = node.emit(cast(x, "float32"))
        return node.emit(relax.op.quantize(x, relax.const(1, "float32"), zero, 0, dtype))
    rounded = _round(node, x)
    if zero is not None:
        rounded = node.emit(relax.op.add(*aligned(node, rounded, node.emit(cast(zero, dtype_of(x))))))
    low, high = _RANGE[dtype]
    clipped = node.emit(relax.op.minimum(node.emit(relax.op.maximum(rounded, scalar(low, x))), scalar(high, x)))
    return node.emit(cast(clipped, dtype))


@op("QuantizeLinear")
def _quantize(node: Node) -> Any:
    axis = _axis(node)
    dtype = node.dtype(2) if node.has(2) else "uint8"
    if node.attr("output_dtype", 0):
        dtype = node.attr_dtype("output_dtype")
    if node.attr("precision", 0) not in (0, 1):
        raise Refused("a precision other than float32")
    if dtype not in _RANGE and dtype not in FORMATS:
        raise Refused(f"quantization to {dtype}")
    row = FORMATS.get(dtype)
    x = node.emit(cast(node.tensor(0), "float32"))
    if row is not None and row.is_float:
        return _quantized_floats(node, x, axis, dtype)
    _widen_codes(node)
    codes = node.emit(_quantized(node, x, axis, dtype if row is None else row.wide))
    if row is None:
        return codes
    low, high = scalar(row.low, codes), scalar(row.high, codes)
    return narrowed(node, node.emit(relax.op.minimum(node.emit(relax.op.maximum(codes, low)), high)), dtype)


def _quantized(node: Node, x: Any, axis: int, dtype: str) -> Any:
    if (parameters := _parameters(node, axis, dtype)) is not None:
        return relax.op.quantize(x, *parameters, axis, dtype)
    zero = _spread(node, 2, axis) if node.has(2) else None
    return saturated(node, _scaled(node, x, axis), zero, dtype)


def _scaled(node: Node, x: Any, axis: int) -> Any:
    scale = node.emit(cast(_spread(node, 1, axis), "float32"))
    return node.emit(relax.op.divide(*aligned(node, x, scale)))


def _quantized_floats(node: Node, x: Any, axis: int, dtype: str) -> Any:
    saturates = bool(node.attr("saturate", 1))
    if dtype == FLOAT8 and saturates and (parameters := _parameters(node, axis, dtype)) is not None:
        return relax.op.quantize(x, *parameters, axis, dtype)
    x = _scaled(node, x, axis)
    if not _has_no_zero_point(node):
        _widen_codes(node)
        x = node.emit(relax.op.add(*aligned(node, x, _spread(node, 2, axis))))
    return narrowed(node, x, dtype, saturates=saturates)


@op("DequantizeLinear")
def _dequantize(node: Node) -> Any:
    """`(x - zero) · scale`."""
    axis = _axis(node)
    plain = node.dtype(0) == FLOAT8 and _parameters(node, axis, FLOAT8) is not None
    if not plain:
        _widen_codes(node)
    if node.dtype(0) not in (*_RANGE, "int32", "float32", FLOAT8):
        raise Refused(f"dequantization of {node.dtype(0)}")
    dtype = node.attr_dtype("output_dtype") if node.attr("output_dtype", 0) else node.dtype(1)
    if node.dtype(0) == "float32":
        return cast(_dequantized_floats(node, axis), dtype)
    if (blocks := _in_blocks(node, axis)) is not None:
        return cast(blocks, dtype)
    if (parameters := _parameters(node, axis, node.dtype(0))) is not None:
        return cast(node.emit(relax.op.dequantize(node.tensor(0), *parameters, axis, "float32")), dtype)
    x = node.emit(cast(node.tensor(0), "int32"))
    if node.has(2):
        x = node.emit(relax.op.subtract(*aligned(node, x, node.emit(cast(_spread(node, 2, axis), "int32")))))
    scale = node.emit(cast(_spread(node, 1, axis), "float32"))
    return cast(node.emit(relax.op.multiply(*aligned(node, node.emit(cast(x, "float32")), scale))), dtype)


def _dequantized_floats(node: Node, axis: int) -> Any:
    x = node.tensor(0)
    if node.has(2):
        x = node.emit(relax.op.subtract(*aligned(node, x, _spread(node, 2, axis))))
    return node.emit(relax.op.multiply(*aligned(node, x, node.emit(cast(_spread(node, 1, axis), "float32")))))


def _widen_codes(node: Node) -> None:
    """Have the numbers of codes and zero points of formats of their own: whole bytes, or float32."""
    for index in (0, 2):
        if node.has(index) and node.dtype(index) in FORMATS:
            node.inputs[index] = widened(node, node.inputs[index])


def _in_blocks(node: Node, axis: int) -> Any | None:
    """A matrix of bytes in whole blocks of an axis: a row of a block is dequantized by a scale of its own.

    None for what is not one: it is computed step by step.
    """
    shape, scales = node.shape(0), node.shape(1)
    block = node.attr("block_size", 0)
    if not block or len(shape) != 2 or len(scales) != 2 or node.dtype(0) not in ("int8", "uint8"):
        return None
    if not all(isinstance(size, int) for size in (*shape, *scales)) or shape[axis] != scales[axis] * block:
        return None
    zero = node.tensor(2) if node.has(2) else relax.const(0, node.dtype(0))
    given = [node.tensor(0), node.emit(cast(node.tensor(1), "float32")), zero]
    if axis == 0:
        given = [permuted(node, part, [1, 0]) if node.shape_of(part) else part for part in given]
    return blocked(node, given[0], given[1], given[2], block, turned=axis == 0)


@op("DynamicQuantizeLinear")
def _dynamic_quantize(node: Node) -> Any:
    return dynamic_codes(node, node.tensor(0))


def dynamic_codes(node: Node, x: Any) -> tuple[Any, Any, Any]:
    """Return codes of a tensor, with scale and zero point from its own range, which always has 0 in it."""
    zero = scalar(0, x)
    high = node.emit(relax.op.maximum(zero, node.emit(relax.op.max(x))))
    low = node.emit(relax.op.minimum(zero, node.emit(relax.op.min(x))))
    scale = node.emit(relax.op.divide(node.emit(relax.op.subtract(high, low)), scalar(255, x)))
    # A tensor of zeros has the scale 1, as in ONNX Runtime. One of denormal numbers may have 0, which is no divisor.
    scale = node.emit(relax.op.where(node.emit(relax.op.equal(high, low)), scalar(1, x), scale))
    divisor = node.emit(relax.op.where(node.emit(relax.op.equal(scale, zero)), scalar(1, x), scale))
    point = saturated(node, node.emit(relax.op.divide(node.emit(relax.op.negative(low)), divisor)), None, "uint8")
    y = node.emit(relax.op.quantize(x, divisor, point, 0 if node.shape_of(x) else -1, "uint8"))
    return y, scale, point


def _rescaled(node: Node, total: Any, scales: list[Any], zero: int) -> Any:
    """An int32 sum, times the operands' scales, over the result's, quantized as the result."""
    x = node.emit(cast(total, "float32"))
    factor = node.emit(relax.op.multiply(*aligned(node, scales[0], scales[1])))
    factor = node.emit(relax.op.divide(*aligned(node, factor, scales[2])))
    x = node.emit(relax.op.multiply(*aligned(node, x, factor)))
    return saturated(node, x, node.tensor(zero), node.dtype(zero))


@op("QLinearMatMul")
def _quantized_matmul(node: Node) -> Any:
    """Inputs: a, its scale and zero point, b and its own, then the result's scale and zero point."""
    left = _less_zero(node, 0, 2, row=True)
    right = _less_zero(node, 3, 5, row=False)
    total = node.emit(relax.op.matmul(left, right))
    scales = [node.emit(cast(node.tensor(index), "float32")) for index in (1, 4, 6)]
    if node.rank(1) == 1 and node.shape(1) != [1]:
        scales[0] = reshaped(node, scales[0], [*node.shape(1), 1])
    return _rescaled(node, total, scales, 7)


def _less_zero(node: Node, index: int, zero: int, *, row: bool) -> Any:
    x = node.emit(cast(node.tensor(index), "int32"))
    point = node.emit(cast(node.tensor(zero), "int32"))
    if row and node.rank(zero) == 1 and node.shape(zero) != [1]:
        point = reshaped(node, point, [*node.shape(zero), 1])
    return node.emit(relax.op.subtract(*aligned(node, x, point)))


@op("QLinearConv")
def _quantized_conv(node: Node) -> Any:
    """Inputs: x, scale, zero, w, scale, zero, y's scale and zero, and an int32 bias. w's may be for each channel."""
    kernel = node.static_shape(3, "the weight")[2:]
    rank = len(kernel)
    strides, dilations = list(node.attr("strides", [1] * rank)), list(node.attr("dilations", [1] * rank))
    pads = spatial_padding(node, node.shape(0)[2:], kernel, strides, dilations)
    x, weight = shifted(node, node.tensor(0), 2), shifted(node, node.tensor(3), 5)
    total = convolution(node, x, weight, strides, pads, dilations, node.attr("group", 1), "int32")
    if node.has(8):
        total = node.emit(add_bias(node, total, node.tensor(8)))
    scales = [node.emit(cast(node.tensor(index), "float32")) for index in (1, 4, 6)]
    if node.rank(4) == 1 and node.shape(4) != [1]:
        scales[1] = reshaped(node, scales[1], [1, *node.shape(4), *[1] * rank])
    else:
        scales[1] = reshaped(node, scales[1], [])
    scales = [reshaped(node, s, []) if node.shape_of(s) == [1] else s for s in scales]
    return _rescaled(node, total, scales, 7)
