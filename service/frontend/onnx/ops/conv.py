"""Convolutions of one, two and three spatial axes. One axis is a convolution of two with a height of 1."""

from __future__ import annotations

from typing import Any

from tvm import relax, topi

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import cast, is_low_precision, permuted, reshaped
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.values import Known

__all__ = ["add_bias", "convolution", "shifted", "spatial_padding"]


def spatial_padding(
    node: Node, sizes: list[Any], kernel: list[int], strides: list[int], dilations: list[int]
) -> list[int]:
    """Return `pads` (all begins, then all ends) from the node's `pads` or `auto_pad`."""
    mode, rank = node.attr("auto_pad", "NOTSET"), len(kernel)
    if mode in ("NOTSET", ""):
        return list(node.attr("pads", [0] * (2 * rank)))
    if mode == "VALID":
        return [0] * (2 * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ModelMalformed(f"node {node.name!r} ({node.op}) has auto_pad={mode!r}", node=node.name)
    begins, ends = [], []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (window - 1) * dilation + 1
        if isinstance(size, int):
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        elif stride == 1:
            total = reach - 1
        else:
            raise Refused(f"auto_pad={mode} with a stride along an axis of symbolic size")
        less, more = total // 2, total - total // 2
        begins.append(less if mode == "SAME_UPPER" else more)
        ends.append(more if mode == "SAME_UPPER" else less)
    return begins + ends


def convolution(
    node: Node,
    x: Any,
    weight: Any,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    groups: int,
    out: str = "",
) -> Any:
    """Return `Y[n, o, …] = Σ X[n, i, …·stride + k·dilation - pad] · W[o, i, k]`; low-precision floats are summed in
    fp32.
    """
    if groups < 1:
        raise ValueError(f"it has {groups} groups")
    rank = len(strides)
    dtype = out or dtype_of(x)
    wide = "float32" if is_low_precision(dtype) else dtype
    if rank == 1:
        shape = node.shape_of(x)
        flat = reshaped(node, x, [*shape[:2], 1, shape[2]])
        taps = node.shape_of(weight)
        weight = reshaped(node, weight, [*taps[:2], 1, taps[2]])
        result = convolution(node, flat, weight, [1, *strides], [0, pads[0], 0, pads[1]], [1, *dilations], groups, out)
        batch, channels, _, width = node.shape_of(result)
        return reshaped(node, result, [batch, channels, width])
    if rank > 3:
        raise Refused(f"{rank} spatial axes")
    function = relax.op.nn.conv2d if rank == 2 else relax.op.nn.conv3d
    result = node.emit(function(x, weight, strides, pads, dilations, groups, out_dtype=wide))
    return node.emit(cast(result, dtype))


def _attributes(node: Node, kernel: list[int]) -> tuple[list[int], list[int], list[int]]:
    rank = len(kernel)
    strides = list(node.attr("strides", [1] * rank))
    dilations = list(node.attr("dilations", [1] * rank))
    declared = node.attr("kernel_shape")
    if declared is not None and list(declared) != kernel:
        raise ModelMalformed(f"node {node.name!r} ({node.op}) has kernel_shape {declared} and a weight of {kernel}")
    return strides, dilations, spatial_padding(node, node.shape(0)[2:], kernel, strides, dilations)


@op("Conv")
def _conv(node: Node) -> Any:
    strides, dilations, pads = _attributes(node, node.static_shape(1, "the weight")[2:])
    x = convolution(node, node.tensor(0), node.tensor(1), strides, pads, dilations, node.attr("group", 1))
    return add_bias(node, x, node.tensor(2)) if node.has(2) else x


@op("ConvInteger")
def _conv_integer(node: Node) -> Any:
    """int8 operands less their zero points, summed in int32."""
    strides, dilations, pads = _attributes(node, node.static_shape(1, "the weight")[2:])
    x = shifted(node, node.tensor(0), 2)
    weight = shifted(node, node.tensor(1), 3)
    return convolution(node, x, weight, strides, pads, dilations, node.attr("group", 1), "int32")


def shifted(node: Node, x: Any, zero: int) -> Any:
    """Return a quantized tensor in int32 less its zero point, which for a weight may be one for each output channel."""
    wide = node.emit(cast(x, "int32"))
    if not node.has(zero):
        return wide
    point = node.emit(cast(node.tensor(zero), "int32"))
    if node.rank(zero) == 1:
        point = reshaped(node, point, [*node.shape(zero), *[1] * (len(node.shape_of(x)) - 1)])
    return node.emit(relax.op.subtract(wide, point))


def add_bias(node: Node, x: Any, bias: Any) -> Any:
    """Return one number for each channel (axis 1); PyTorch's bfloat16 exports leave the bias in float32."""
    channels = node.shape_of(bias)
    bias = node.emit(cast(bias, dtype_of(x)))
    shape = [1, *channels, *[1] * (len(node.shape_of(x)) - 2)]
    return relax.op.add(x, reshaped(node, bias, shape))


@op("ConvTranspose")
def _conv_transpose(node: Node) -> Any:
    """A convolution of the input, spread by the strides, with the kernel turned round."""
    _, per_group, *kernel = node.static_shape(1, "the weight")
    rank, groups = len(kernel), node.attr("group", 1)
    strides = list(node.attr("strides", [1] * rank))
    dilations = list(node.attr("dilations", [1] * rank))
    reach = [(size - 1) * dilation for size, dilation in zip(kernel, dilations, strict=True)]
    begins, ends = _transpose_padding(node, strides, reach)
    x = node.tensor(0)
    if rank == 2 and _has_operator(node, groups, strides, dilations, [*begins, *ends]):
        padding, extra = [*begins, *(max(end, 0) for end in ends)], [max(-end, 0) for end in ends]
        x = relax.op.nn.conv2d_transpose(x, node.tensor(1), strides=strides, padding=padding, output_padding=extra)
        return add_bias(node, node.emit(x), node.tensor(2)) if node.has(2) else x
    before = [r - b for r, b in zip(reach, begins, strict=True)]
    after = [r - e for r, e in zip(reach, ends, strict=True)]
    if any(stride > 1 for stride in strides):
        x = node.te(topi.nn.dilate, x, [1, 1, *strides])
    x = _pad_or_crop(node, x, before, after)
    weight = _turned(node, groups, per_group)
    x = convolution(node, x, weight, [1] * rank, [0] * (2 * rank), dilations, groups)
    return add_bias(node, x, node.tensor(2)) if node.has(2) else x


def _has_operator(node: Node, groups: int, strides: list[int], dilations: list[int], pads: list[int]) -> bool:
    """Whether relax's operator is the same, of an image of known sizes and a known weight.

    Its legalization has no dilation, and its `output_padding` is less than the stride.
    """
    known = isinstance(node.inputs[1], Known) and all(
        isinstance(size, int) for size in node.shape_of(node.tensor(0))[1:]
    )
    within = min(pads[:2]) >= 0 and all(-end < stride for end, stride in zip(pads[2:], strides, strict=True))
    return known and within and node.dtype(0) == "float32" and {groups, *dilations} == {1} and max(strides) > 1


def _transpose_padding(node: Node, strides: list[int], reach: list[int]) -> tuple[list[int], list[int]]:
    """What is cut from the full result at each side; an end may be negative, which adds (`output_padding`)."""
    rank, mode = len(strides), node.attr("auto_pad", "NOTSET")
    extra = list(node.attr("output_padding", [0] * rank))
    wanted = node.attr("output_shape")
    if wanted is None and mode in ("NOTSET", "", "VALID"):
        pads = list(node.attr("pads", [0] * (2 * rank))) if mode != "VALID" else [0] * (2 * rank)
        return pads[:rank], [end - add for end, add in zip(pads[rank:], extra, strict=True)]
    sizes = node.shape(0)[2:]
    begins, ends = [], []
    for axis in range(rank):
        if wanted is not None:
            if not isinstance(sizes[axis], int):
                raise Refused("output_shape with an input of symbolic size")
            total = strides[axis] * (sizes[axis] - 1) + extra[axis] + reach[axis] + 1 - wanted[-rank:][axis]
        else:
            total = max(reach[axis] + 1 + extra[axis] - strides[axis], 0)
        # What an output_shape asks for beyond the full result is all behind it.
        cut = max(total, 0)
        begin = cut // 2 if mode == "SAME_UPPER" else cut - cut // 2
        begins.append(begin)
        ends.append(total - begin - extra[axis])
    return begins, ends


def _pad_or_crop(node: Node, x: Any, before: list[int], after: list[int]) -> Any:
    low, high = [0, 0, *before], [0, 0, *after]
    for axis, (a, b) in enumerate(zip(low, high, strict=True)):
        if a < 0 or b < 0:
            size = node.shape_of(x)[axis]
            end = onnx_dims.simplify(size + min(b, 0), node.scope)
            x = node.emit(relax.op.strided_slice(x, [axis], [max(-a, 0)], [end], [1], assume_inbound=True))
    low, high = [max(a, 0) for a in low], [max(b, 0) for b in high]
    return node.te(topi.nn.pad, x, low, high) if any(low + high) else x


def _turned(node: Node, groups: int, per_group: int) -> Any:
    """`W[i, o, k]` as `W'[o, i, -k]`, group by group; at import when the weight is known."""
    inputs, _, *kernel = node.static_shape(1, "the weight")
    rank = len(kernel)
    axes = [0, 2, 1, *range(3, 3 + rank)]
    apart, joined = [groups, inputs // groups, per_group, *kernel], [groups * per_group, inputs // groups, *kernel]
    value = node.inputs[1]
    if isinstance(value, Known):
        flipped = value.array[(slice(None), slice(None), *[slice(None, None, -1)] * rank)]
        return relax.const(flipped.reshape(apart).transpose(axes).reshape(joined), value.dtype)
    x = node.tensor(1)
    for axis in range(2, 2 + rank):
        x = node.emit(relax.op.flip(x, axis))
    return reshaped(node, permuted(node, reshaped(node, x, apart), axes), joined)
