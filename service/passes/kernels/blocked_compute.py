"""Tensor expressions of operators on blocked layouts (`NCHW[v]c`, packed weights), for the layout passes to emit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import te

from schedules.cpu.common.register_tile import UNROLLED_COLUMNS

__all__ = ["conv2d", "depthwise_conv2d", "matmul", "pack_channels", "row_tile", "unpack_channels"]


def row_tile(extent: int, most: int) -> int:
    """The rows of a register tile for `extent` rows: of most/2..most, what wastes least, the most on a tie."""
    if extent <= most:
        return extent
    return min(range(most, most // 2, -1), key=lambda rows: (_padded(extent, rows), -rows))


def _padded(extent: int, tile: int) -> int:
    return -(-extent // tile) * tile


def _clamped(index: Any, extent: int, padded: int) -> Any:
    return index if extent == padded else te.min(index, extent - 1)


def pack_channels(data: te.Tensor, lanes: int) -> te.Tensor:
    """`B[n, c, h, w, v] = A[n, c*lanes + v, h, w]`, and zero for channels past the last."""
    batch, channels, height, width = data.shape
    blocks = -(-int(channels) // lanes)

    def element(n: Any, c: Any, h: Any, w: Any, v: Any) -> Any:
        channel = c * lanes + v
        if int(channels) % lanes == 0:
            return data[n, channel, h, w]
        return te.if_then_else(channel < channels, data[n, channel, h, w], tvm.tirx.const(0, data.dtype))

    return te.compute((batch, blocks, height, width, lanes), element, name="pack_channels")


def unpack_channels(data: te.Tensor, channels: int) -> te.Tensor:
    """`B[n, c, h, w] = A[n, c // lanes, h, w, c % lanes]` for the first `channels` channels."""
    batch, _, height, width, lanes = data.shape
    return te.compute(
        (batch, channels, height, width),
        lambda n, c, h, w: data[n, c // lanes, h, w, c % lanes],
        name="unpack_channels",
    )


def _pad(data: te.Tensor, padding: tuple[int, int, int, int]) -> te.Tensor:
    """Zeros around `h` and `w` (axes 2 and 3) of a plain or blocked tensor."""
    top, left, bottom, right = padding
    if not any(padding):
        return data
    batch, channels, height, width, *rest = data.shape
    shape = (batch, channels, height + top + bottom, width + left + right, *rest)

    def element(n: Any, c: Any, h: Any, w: Any, *v: Any) -> Any:
        inside = te.all(h >= top, h < height + top, w >= left, w < width + left)
        return te.if_then_else(inside, data[(n, c, h - top, w - left, *v)], tvm.tirx.const(0, data.dtype))

    return te.compute(shape, element, name="pad")


def conv2d(
    data: te.Tensor,
    weight: te.Tensor,
    gate: te.Tensor | None = None,
    *,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    most_rows: int,
    out_dtype: str,
) -> te.Tensor:
    """`C[n, o, h, w, ov] += A[n, i, h*s + r*d, w*s + q*d, iv] * W[o, i, r, q, iv, ov]` on zero-padded A.

    `data` is `NCHW[v]c`, or plain `NCHW` for a first layer with few channels (`W[o, i, r, q, 1, ov]`). The
    accumulator is over whole register tiles: columns past the last read the last one again and are cropped,
    so that no tile has a tail. A 1x1 convolution with stride 1 has its rows and columns as one axis, and so has one
    with a small result of short rows, whose tiles then go over the ends of rows.

    `gate[n, c, 0, 0, v]` scales the channels of A: the weights are scaled where they are fewer than the elements of A.
    """
    batch, _, height, width, *rest = data.shape
    blocks, in_blocks, kernel_h, kernel_w, in_lanes, lanes = (int(extent) for extent in weight.shape)
    (stride_h, stride_w), (dilation_h, dilation_w), (top, left, bottom, right) = strides, dilation, padding
    height, width = int(height), int(width)
    out_h = (height + top + bottom - (kernel_h - 1) * dilation_h - 1) // stride_h + 1
    out_w = (width + left + right - (kernel_w - 1) * dilation_w - 1) // stride_w + 1
    blocks_per_group = blocks // groups
    dense = kernel_h == kernel_w == stride_h == stride_w == 1 and not any(padding)
    flat = dense or _short_rows(out_h, out_w, most_rows)
    rows, columns = (1, out_h * out_w) if flat else (out_h, out_w)
    padded = _padded(columns, row_tile(columns, most_rows))
    of_data = gate is not None and not any(padding) and height * width < blocks * lanes * kernel_h * kernel_w
    source = _gated_data(data, gate) if of_data else _pad(data, padding)
    factor = weight if gate is None or of_data else _gated_weight(weight, gate)
    i = te.reduce_axis((0, in_blocks), name="i")
    r = te.reduce_axis((0, kernel_h), name="r")
    q = te.reduce_axis((0, kernel_w), name="q")
    iv = te.reduce_axis((0, in_lanes), name="iv")

    def product(n: Any, o: Any, h: Any, w: Any, ov: Any) -> Any:
        w = _clamped(w, columns, padded)
        y, x = (w // out_w, w % out_w) if flat else (h, w)
        y, x = y * stride_h + r * dilation_h, x * stride_w + q * dilation_w
        block = i if groups == 1 else (o // blocks_per_group) * in_blocks + i
        position = (n, block, y, x, iv) if rest else (n, block, y, x)
        tap = (o, i, r, q, iv, ov) if factor is weight else (n, o, i, r, q, iv, ov)
        return te.sum(source[position].astype(out_dtype) * factor[tap].astype(out_dtype), axis=[i, r, q, iv])

    tiles = te.compute((batch, blocks, rows, padded, lanes), product, name="conv2d")

    def crop(n: Any, o: Any, h: Any, w: Any, ov: Any) -> Any:
        return tiles[n, o, 0, h * out_w + w, ov] if flat else tiles[n, o, h, w, ov]

    return te.compute((batch, blocks, out_h, out_w, lanes), crop, name="crop")


def _gated_data(data: te.Tensor, gate: te.Tensor) -> te.Tensor:
    return te.compute(data.shape, lambda n, i, h, w, iv: data[n, i, h, w, iv] * gate[n, i, 0, 0, iv], name="gated")


def _gated_weight(weight: te.Tensor, gate: te.Tensor) -> te.Tensor:
    """`G[n, o, i, r, q, iv, ov] = W[o, i, r, q, iv, ov] * gate[n, i, 0, 0, iv]`, for convolutions of one group."""

    def element(n: Any, o: Any, i: Any, r: Any, q: Any, iv: Any, ov: Any) -> Any:
        return weight[o, i, r, q, iv, ov] * gate[n, i, 0, 0, iv]

    return te.compute((gate.shape[0], *weight.shape), element, name="gated")


def _short_rows(height: int, width: int, most_rows: int) -> bool:
    """Whether tiles within rows would leave a third of the accumulators, and the image is small enough to unroll."""
    return height * width <= UNROLLED_COLUMNS and 3 * row_tile(width, most_rows) <= 2 * most_rows


def depthwise_conv2d(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    out_dtype: str,
) -> te.Tensor:
    """`C[n, c, h, w, v] += A[n, c, h*s + r*d, w*s + q*d, v] * W[c, r, q, v]` on zero-padded A.

    The last stage copies: the sums are then in registers whether or not something else is fused behind them.
    """
    batch, blocks, height, width, lanes = data.shape
    _, kernel_h, kernel_w, _ = (int(extent) for extent in weight.shape)
    (stride_h, stride_w), (dilation_h, dilation_w), (top, left, bottom, right) = strides, dilation, padding
    out_h = (int(height) + top + bottom - (kernel_h - 1) * dilation_h - 1) // stride_h + 1
    out_w = (int(width) + left + right - (kernel_w - 1) * dilation_w - 1) // stride_w + 1
    source = _pad(data, padding)
    r = te.reduce_axis((0, kernel_h), name="r")
    q = te.reduce_axis((0, kernel_w), name="q")

    def product(n: Any, c: Any, h: Any, w: Any, v: Any) -> Any:
        value = source[n, c, h * stride_h + r * dilation_h, w * stride_w + q * dilation_w, v].astype(out_dtype)
        return te.sum(value * weight[c, r, q, v].astype(out_dtype), axis=[r, q])

    shape = (batch, blocks, out_h, out_w, lanes)
    sums = te.compute(shape, product, name="depthwise_conv2d")
    return te.compute(shape, lambda *index: sums[index], name="written")


def matmul(data: te.Tensor, weight: te.Tensor, *, columns: int, row_tile: int, out_dtype: str) -> te.Tensor:
    """`C[..., m, n] += A[..., m, k] * B[n // t, k, n % t]` for the first `columns` of the packed `B[N/t, K, t]`.

    All leading axes are one axis of rows in the accumulator, which is over whole tiles of `row_tile` rows: rows
    past the last read the last one again and are cropped.
    """
    *leading, depth = data.shape
    panels, _, tile = (int(extent) for extent in weight.shape)
    rows = prod(int(extent) for extent in leading)
    padded = row_tile * _divisible(-(-rows // row_tile))
    k = te.reduce_axis((0, depth), name="k")

    def product(m: Any, n: Any) -> Any:
        row = _unflatten(_clamped(m, rows, padded), leading)
        return te.sum(data[(*row, k)].astype(out_dtype) * weight[n // tile, k, n % tile].astype(out_dtype), axis=k)

    tiles = te.compute((padded, panels * tile), product, name="matmul")
    return te.compute((*leading, columns), lambda *index: tiles[_flatten(index[:-1], leading), index[-1]], name="crop")


def _divisible(tiles: int) -> int:
    """`tiles`, or up to 1/32 more of them, so that they can be divided into blocks that fit a cache."""
    return _padded(tiles, 1 << max(0, (tiles // 32).bit_length() - 1))


def _flatten(index: Sequence[Any], shape: Sequence[Any]) -> Any:
    flat: Any = 0
    for position, extent in zip(index, shape, strict=True):
        flat = position if isinstance(flat, int) and flat == 0 else flat * extent + position
    return flat


def _unflatten(flat: Any, shape: Sequence[Any]) -> list[Any]:
    index: list[Any] = []
    for extent in reversed(shape[1:]):
        index.append(flat % extent)
        flat = flat // extent
    return [flat, *reversed(index)]
