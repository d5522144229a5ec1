"""Convolutions on blocked layouts (`NCHW[v]c`, packed weights) as tensor expressions, and the packing of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import te

from relaxc.schedules.ir.tir import as_int, simplify
from relaxc.schedules.ir.types import Expr
from relaxc.schedules.operators import Conv2d, Depthwise2d, Pool2d
from relaxc.schedules.plan import PLAN, Plan

__all__ = ["conv2d", "fill", "pack_channels", "pack_weight", "packed_shape", "pad", "results", "unpack_channels"]

Array = np.ndarray[Any, Any]


def fill(array: Array, axis: int, multiple: int) -> Array:
    """Return `array` with zeros at the end of `axis`, to a multiple of `multiple`."""
    missing = -array.shape[axis] % multiple
    widths = [(0, missing if i == axis else 0) for i in range(array.ndim)]
    return np.pad(array, widths) if missing else array


def pack_weight(weight: Array, in_lanes: int, lanes: int, dot: int = 1) -> Array:
    """Return `OIHW` as `OIHW[in_lanes]i[lanes]o`, or `OIHW[in_lanes/dot]i[lanes]o[dot]i` for instructions.

    It is a view where nothing is filled up.
    """
    filled = fill(fill(weight, 0, lanes), 1, in_lanes)
    o, i, h, w = filled.shape
    blocks = filled.reshape(o // lanes, lanes, i // in_lanes, in_lanes, h, w)
    if dot > 1:
        parts = blocks.reshape(*blocks.shape[:3], in_lanes // dot, dot, h, w)
        return parts.transpose(0, 2, 5, 6, 3, 1, 4)
    return blocks.transpose(0, 2, 4, 5, 3, 1)


def packed_shape(shape: Sequence[int], in_lanes: int, lanes: int, dot: int = 1) -> tuple[int, ...]:
    """Return the shape of weights of `shape` that `pack_weight` has packed."""
    filters, channels, *taps = shape
    interleaved = [dot] if dot > 1 else []
    return -(-filters // lanes), -(-channels // in_lanes), *taps, in_lanes // dot, lanes, *interleaved


def pack_channels(data: te.Tensor, lanes: int) -> te.Tensor:
    """Compute `B[n, c, h, w, v] = A[n, c*lanes + v, h, w]`, and zero for channels past the last."""
    batch, channels, height, width = data.shape
    blocks = -(-int(channels) // lanes)

    def element(n: Expr, c: Expr, h: Expr, w: Expr, v: Expr) -> Expr:
        channel = c * lanes + v
        if int(channels) % lanes == 0:
            return data[n, channel, h, w]
        return te.if_then_else(channel < channels, data[n, channel, h, w], tvm.tirx.const(0, data.dtype))

    return te.compute((batch, blocks, height, width, lanes), element, name="pack_channels")


def unpack_channels(data: te.Tensor, channels: int) -> te.Tensor:
    """Compute `B[n, c, h, w] = A[n, c // lanes, h, w, c % lanes]` for the first `channels` channels."""
    batch, _, height, width, lanes = data.shape
    return te.compute(
        (batch, channels, height, width),
        lambda n, c, h, w: data[n, c // lanes, h, w, c % lanes],
        name="unpack_channels",
    )


def pad(data: te.Tensor, padding: tuple[int, int, int, int], value: float = 0) -> te.Tensor:
    """Return it with zeros, or `value`, around `h` and `w` (axes 2 and 3) of a plain or blocked tensor."""
    top, left, bottom, right = padding
    if not any(padding):
        return data
    batch, channels, height, width, *rest = data.shape
    shape = (batch, channels, height + top + bottom, width + left + right, *rest)

    def element(n: Expr, c: Expr, h: Expr, w: Expr, *v: Expr) -> Expr:
        inside = te.all(h >= top, h < height + top, w >= left, w < width + left)
        return te.if_then_else(inside, data[(n, c, h - top, w - left, *v)], tvm.tirx.const(value, data.dtype))

    return te.compute(shape, element, name="pad")


def results(op: Conv2d | Depthwise2d | Pool2d, sizes: Sequence[Any]) -> list[Any]:
    """Return the rows and columns of the result for an image of these sizes: ints, expressions where they are such."""
    found = [op.result_of(axis, size) for axis, size in enumerate(sizes)]
    whole = [size if isinstance(size, int) else simplify(size) for size in found]
    return [size if as_int(size) is None else as_int(size) for size in whole]


def conv2d(data: te.Tensor, weight: te.Tensor, gate: te.Tensor | None = None, *, plan: Plan) -> te.Tensor:
    """Return `C[n, o, h, w, ov] += A[n, i, h*s + r*d, w*s + q*d, iv] * W[o, i, r, q, iv, ov]` on zero-padded A.

    `data` is `NCHW[v]c`, or plain `NCHW` for a first layer with few channels (`W[o, i, r, q, 1, ov]`). The
    accumulator is over the plan's padded columns: those past the last read the last one again and are cropped, so that
    no tile has a tail; where the width is not known, it is over the columns that there are. Where the
    plan is flat, rows and columns are one axis, whose tiles go over the ends of rows.

    Where an instruction takes several channels, the sum is over `iv` of these and `j` in them.

    `gate[n, c, 0, 0, v]` scales the channels of A: the weights are scaled where they are fewer than the elements of A.
    """
    op: Conv2d = plan.operator  # type: ignore[assignment]  # plans of this template are of convolutions
    groups, out_dtype, flat, padded = op.groups, op.accumulate, bool(plan.parameters["flat"]), plan.parameters["padded"]
    batch, _, _, _, *rest = data.shape
    blocks, in_blocks, kernel_h, kernel_w, steps, lanes, *interleaved = (int(extent) for extent in weight.shape)
    (stride_h, stride_w), (dilation_h, dilation_w), padding = op.strides, op.dilation, op.padding
    out_h, out_w = results(op, data.shape[2:4])
    blocks_per_group = blocks // groups
    rows, columns = (1, out_h * out_w) if flat else (out_h, out_w)
    padded = padded or columns
    assumed = op.assumed()
    pixels = assumed.height * assumed.width
    of_data = gate is not None and not any(padding) and pixels < blocks * lanes * kernel_h * kernel_w
    source = _gated_data(data, gate) if of_data else pad(data, padding)
    factor = weight if gate is None or of_data else _gated_weight(weight, gate)
    i = te.reduce_axis((0, in_blocks), name="i")
    r = te.reduce_axis((0, kernel_h), name="r")
    q = te.reduce_axis((0, kernel_w), name="q")
    iv = te.reduce_axis((0, steps), name="iv")
    within = [te.reduce_axis((0, extent), name="j") for extent in interleaved]
    lane = iv * interleaved[0] + within[0] if within else iv

    def product(n: Expr, o: Expr, h: Expr, w: Expr, ov: Expr) -> Expr:
        w = w if columns is padded or columns == padded else te.min(w, columns - 1)
        y, x = (w // out_w, w % out_w) if flat else (h, w)
        y, x = y * stride_h + r * dilation_h, x * stride_w + q * dilation_w
        block = i if groups == 1 else (o // blocks_per_group) * in_blocks + i
        position = (n, block, y, x, lane) if rest else (n, block, y, x)
        tap = (o, i, r, q, iv, ov, *within) if factor is weight else (n, o, i, r, q, iv, ov)
        return te.sum(source[position].astype(out_dtype) * factor[tap].astype(out_dtype), axis=[i, r, q, iv, *within])

    tiles = te.compute((batch, blocks, rows, padded, lanes), product, name="conv2d", attrs={PLAN: plan.to_json()})

    def crop(n: Expr, o: Expr, h: Expr, w: Expr, ov: Expr) -> Expr:
        return (tiles[n, o, 0, h * out_w + w, ov] if flat else tiles[n, o, h, w, ov]).astype(op.out)

    return te.compute((batch, blocks, out_h, out_w, lanes), crop, name="crop")


def _gated_data(data: te.Tensor, gate: te.Tensor) -> te.Tensor:
    return te.compute(data.shape, lambda n, i, h, w, iv: data[n, i, h, w, iv] * gate[n, i, 0, 0, iv], name="gated")


def _gated_weight(weight: te.Tensor, gate: te.Tensor) -> te.Tensor:
    """`G[n, o, i, r, q, iv, ov] = W[o, i, r, q, iv, ov] * gate[n, i, 0, 0, iv]`, for convolutions of one group."""

    def element(n: Expr, o: Expr, i: Expr, r: Expr, q: Expr, iv: Expr, ov: Expr) -> Expr:
        return weight[o, i, r, q, iv, ov] * gate[n, i, 0, 0, iv]

    return te.compute((gate.shape[0], *weight.shape), element, name="gated")
