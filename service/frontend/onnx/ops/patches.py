"""Patches of images: put back where they were (Col2Im), taken where offsets say (DeformConv), and affine grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import full_precision, relax_dim, reshaped
from relaxc.service.frontend.onnx.ops.registry import op


def _spatial(node: Node, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads."""
    strides, dilations = (list(node.attr(name, [1] * rank)) for name in ("strides", "dilations"))
    return strides, dilations, list(node.attr("pads", [0] * (2 * rank)))


@op("Col2Im")
def _col2im(node: Node) -> Any:
    """`Y[n, c, p] = Σ X[n, (c, k), (p + pad - k · dilation) / stride]` over the places `k` of a block that divide."""
    image, block = node.dims(1, "image_shape"), node.dims(2, "block_shape")
    strides, dilations, pads = _spatial(node, rank := len(image))
    batch, rows, columns = node.shape(0)
    area = onnx_dims.product(block)
    steps = [
        (size + low + high - dilation * (each - 1) - 1) // stride + 1
        for size, low, high, dilation, each, stride in zip(
            image, pads[:rank], pads[rank:], dilations, block, strides, strict=True
        )
    ]
    channels = onnx_dims.simplify(relax_dim(rows) // relax_dim(area), node.scope)
    node.require(rows, "==", onnx_dims.product([channels, area]), "has {left} rows for blocks of {right}")
    node.require(columns, "==", onnx_dims.product(steps), "has {left} blocks, of which an image has {right}")
    sizes = [relax_dim(size) for size in (batch, channels, *image, *block, *steps)]

    def kernel(x: te.Tensor, batch: Any, channels: Any, *sizes: Any) -> te.Tensor:
        image, block, steps = sizes[:rank], sizes[rank : 2 * rank], sizes[2 * rank :]
        taps = [te.reduce_axis((0, size), name=f"k{axis}") for axis, size in enumerate(block)]

        def element(n: Any, c: Any, *place: Any) -> Any:
            row, column, inside = c, tirx.const(0, "int64"), []
            for axis, tap in enumerate(taps):
                far = place[axis] + pads[axis] - tap * dilations[axis]
                step = tirx.floordiv(far, strides[axis])
                inside += [tirx.floormod(far, strides[axis]) == 0, step >= 0, step < steps[axis]]
                row, column = row * block[axis] + tap, column * steps[axis] + step
            zero = tirx.const(0, x.dtype)
            return te.sum(tirx.if_then_else(tirx.all(*inside), x(n, row, column), zero), axis=taps)

        return te.compute((batch, channels, *image), element, name="col2im")

    return full_precision(node, lambda x: node.te(kernel, x, *sizes, primfunc_name_hint="col2im"), node.tensor(0))


@op("DeformConv")
def _deform_conv(node: Node) -> Any:
    """A convolution whose taps are where the kernel's places and offsets of each say, between four elements."""
    if node.rank(0) != 4:
        raise Refused(f"{node.rank(0) - 2} spatial axes")
    groups, spread = node.attr("group", 1), node.attr("offset_group", 1)
    batch, channels, *_ = node.shape(0)
    out, _, *kernel = node.static_shape(1, "the weight")
    height, width = node.shape(2)[2:]
    if not isinstance(channels, int):
        raise Refused("channels of a symbolic size")
    strides, dilations, pads = _spatial(node, 2)
    each, taps = channels // spread, kernel[0] * kernel[1]

    def columns(x: te.Tensor, offset: te.Tensor, *mask: te.Tensor) -> te.Tensor:
        def element(n: Any, row: Any, column: Any) -> Any:
            channel, tap = tirx.floordiv(row, taps), tirx.floormod(row, taps)
            h, w = tirx.floordiv(column, offset.shape[3]), tirx.floormod(column, offset.shape[3])
            own = tirx.floordiv(channel, each) * taps + tap
            starts = tirx.floordiv(tap, kernel[1]), tirx.floormod(tap, kernel[1])
            places = [
                (at * strides[axis] - pads[axis] + starts[axis] * dilations[axis]).astype(x.dtype)
                + offset(n, own * 2 + axis, h, w)
                for axis, at in enumerate((h, w))
            ]
            found = _between(x, (n, channel), places)
            return found * mask[0](n, own, h, w) if mask else found

        shape = (x.shape[0], x.shape[1] * taps, offset.shape[2] * offset.shape[3])
        return te.compute(shape, element, name="columns")

    def run(x: Any, weight: Any, offset: Any, *mask: Any) -> Any:
        made = node.te(columns, x, offset, *mask, primfunc_name_hint="columns")
        made = reshaped(node, made, [batch, groups, channels // groups * taps, onnx_dims.product([height, width])])
        weight = reshaped(node, weight, [groups, out // groups, channels // groups * taps])
        return reshaped(node, node.apply("MatMul", weight, made), [batch, out, height, width])

    tensors = [node.tensor(index) for index in (0, 1, 2, *([4] if node.has(4) else []))]
    y = full_precision(node, run, *tensors)
    return node.apply("Add", y, reshaped(node, node.tensor(3), [out, 1, 1])) if node.has(3) else y


def _between(x: te.Tensor, before: tuple[Any, ...], places: Sequence[Any]) -> Any:
    """What is at a place between four elements, 0 outside of them. A place far away, or NaN, is outside."""
    one, total = tirx.const(1, x.dtype), tirx.const(0, x.dtype)
    sizes = x.shape[2:]
    bounded = [
        tirx.Select(tirx.And(at > -1, at < size.astype(x.dtype)), at, tirx.const(-2, x.dtype))
        for at, size in zip(places, sizes, strict=True)
    ]
    firsts = [tirx.floor(at) for at in bounded]
    for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
        index, weight, inside = [], one, []
        for first, at, step, size in zip(firsts, bounded, corner, sizes, strict=True):
            place = first.astype("int64") + step
            index.append(place)
            inside += [place >= 0, place < size]
            weight = weight * (at - first if step else one - (at - first))
        total = total + weight * tirx.if_then_else(tirx.all(*inside), x(*before, *index), tirx.const(0, x.dtype))
    return total


@op("AffineGrid")
def _affine_grid(node: Node) -> Any:
    """`grid[n, …, k] = Σ_j theta[n, k, j] · place_j`, whose places run from -1 to 1, the last axis first, then 1."""
    batch, _, *sides = node.dims(1, "size")
    corners = node.attr("align_corners", 0)
    node.require(node.shape(0)[0], "==", batch, "has {left} matrices for {right} images")

    def kernel(theta: te.Tensor, *sides: Any) -> te.Tensor:
        def place(at: Any, size: Any) -> Any:
            at, size = at.astype(theta.dtype), size.astype(theta.dtype)
            if corners:
                last = tirx.max(size - 1, tirx.const(1, theta.dtype))
                return 2 * at / last - 1
            return (2 * at + 1) / size - 1

        def element(n: Any, *index: Any) -> Any:
            *at, row = index
            places = [place(*each) for each in zip(reversed(at), reversed(sides), strict=True)]
            total = theta(n, row, len(places))
            for column, each in enumerate(places):
                total = total + theta(n, row, column) * each
            return total

        return te.compute((theta.shape[0], *sides, len(sides)), element, name="grid")

    sizes = [relax_dim(size) for size in sides]
    return full_precision(node, lambda x: node.te(kernel, x, *sizes, primfunc_name_hint="grid"), node.tensor(0))
