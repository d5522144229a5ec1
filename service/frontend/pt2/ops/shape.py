"""Moves of data that compute nothing: views, slices, concatenation, padding. Target shapes come from the node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter, is_prim, prim
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op


@converts(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze.default",
    "aten.flatten.using_ints",
)
def _view(em: Emitter, x: Any, *_: Any) -> Any:
    return em.reshape(x, em.out_shape())


@converts("aten.expand.default")
def _expand(em: Emitter, x: Any, *_: Any) -> Any:
    return em.broadcast(x, em.out_shape())


@converts("aten.permute.default")
def _permute(em: Emitter, x: Any, dims: Sequence[int]) -> Any:
    return em.permute(x, dims)


@converts("aten.transpose.int", "aten.t.default")
def _transpose(em: Emitter, x: Any, first: int = 0, second: int = 1) -> Any:
    rank = em.rank(x)
    if rank < 2:
        return x
    axes = list(range(rank))
    axes[first], axes[second] = axes[second], axes[first]
    return em.permute(x, axes)


@converts("aten.as_strided.default")
def _as_strided(em: Emitter, x: Any, *_: Any) -> Any:
    """What a view of a contiguous tensor with other strides holds: dims in another order, or gathered one by one."""
    source, target = em.node.args[0].meta["val"], em.meta()
    if not source.is_contiguous() or target.storage_offset() != source.storage_offset():
        raise em.refuse("a view of a tensor that is itself a view")
    strides = list(target.stride())
    order = sorted(range(len(strides)), key=lambda axis: (-_hint(strides[axis]), axis))
    dense, expected = True, 1
    for axis in reversed(order):
        dense = dense and (target.shape[axis] == 1 or strides[axis] == expected)
        expected = expected * target.shape[axis]
    if dense and expected == math.prod(source.shape):
        ordered = em.reshape(x, em.sizes([target.shape[axis] for axis in order]))
        return em.permute(ordered, [order.index(axis) for axis in range(len(order))])
    return _gather_strided(em, x, em.out_shape(), em.sizes(strides))


def _hint(stride: Any) -> int:
    return int(stride.node.hint) if hasattr(stride, "node") else int(stride)


def _gather_strided(em: Emitter, x: Any, shape: list[Any], strides: list[Any]) -> Any:
    if any(map(is_prim, shape)) or any(map(is_prim, strides)):
        raise em.refuse("strides that are not known when compiling")
    where = np.zeros(shape, "int64")
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        where += np.arange(size).reshape([-1] + [1] * (len(shape) - axis - 1)) * stride
    flat = em.reshape(x, [math.prod(em.static_shape(x, "as_strided"))])
    return em(op.take(flat, em.const(where, "int64"), axis=0, mode="clip"))


@converts("aten.slice.Tensor")
def _slice(em: Emitter, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = dim % em.rank(x)
    length = em.out_shape()[axis]
    begin = _first(em, start, em.shape(x)[axis])
    return em.slice(x, axis, begin, length, step)


def _first(em: Emitter, start: Any, size: Any) -> Any:
    """Where a slice begins: counted from the end when negative, and never outside."""
    from tvm import tirx

    if start is None:
        return 0
    if not is_prim(start) and not is_prim(size):
        return min(max(start + size if start < 0 else start, 0), size)
    if not is_prim(start):
        return tirx.max(size + start, 0) if start < 0 else tirx.min(size, tirx.IntImm("int64", start))
    return start


@converts("aten.select.int")
def _select(em: Emitter, x: Any, dim: int, index: Any) -> Any:
    axis = dim % em.rank(x)
    size = em.shape(x)[axis]
    begin = index if is_prim(index) or index >= 0 else size + index
    return em.reshape(em.slice(x, axis, begin, 1), em.out_shape())


@converts("aten.split_with_sizes.default", "aten.split_with_sizes_copy.default")
def _split(em: Emitter, x: Any, sizes: Sequence[Any], dim: int = 0) -> Any:
    axis, begin, parts = dim % em.rank(x), 0, []
    for size in sizes:
        parts.append(em.slice(x, axis, begin, size))
        begin = begin + size
    return tuple(parts)


@converts("aten.unbind.int")
def _unbind(em: Emitter, x: Any, dim: int = 0) -> Any:
    axis = dim % em.rank(x)
    shape = [size for index, size in enumerate(em.shape(x)) if index != axis]
    return tuple(em.reshape(em.slice(x, axis, index, 1), shape) for index in range(len(em.meta())))


@converts("aten.cat.default")
def _cat(em: Emitter, tensors: Sequence[Any], dim: int = 0) -> Any:
    out = em.out_dtype()
    parts = [em.cast(x, out) for x in tensors if em.shape(x) != [0]]  # torch lets an empty vector into any list
    if not parts:
        return em.cast(tensors[0], out)
    return parts[0] if len(parts) == 1 else em(op.concat(parts, axis=dim % em.rank(parts[0])))


@converts("aten.stack.default", keep=True)
def _stack(em: Emitter, tensors: Sequence[Any], dim: int = 0) -> Any:
    axis = dim % (em.rank(tensors[0]) + 1)
    shape = list(em.out_shape())
    shape[axis] = 1
    return em(op.concat([em.reshape(em.cast(x, em.out_dtype()), shape) for x in tensors], axis=axis))


@converts("aten.unfold.default")
def _unfold(em: Emitter, x: Any, dim: int, size: int, step: int) -> Any:
    """Windows along one dim: x[..., n, ...] → [..., count, ..., size]."""
    if em.rank(x) == 0:
        return em.reshape(x, em.out_shape())
    axis, rank = dim % em.rank(x), em.rank(x)
    count = em.out_shape()[axis]
    begin = em(op.multiply(em(op.arange(prim(0), prim(count), prim(1), "int64")), em.const(step, "int64")))
    where = em(op.add(em.reshape(begin, [count, 1]), em.const(np.arange(size).reshape(1, size), "int64")))
    windows = em(op.take(x, where, axis=axis, mode="clip"))
    return em.permute(windows, [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1])


@converts("aten.repeat.default")
def _repeat(em: Emitter, x: Any, repeats: Sequence[Any]) -> Any:
    """Tiles: each dim is broadcast beside itself, which also takes symbolic counts."""
    shape = [1] * (len(repeats) - em.rank(x)) + em.shape(x)
    if all(not is_prim(count) and count == 1 for count in repeats):
        return em.reshape(x, shape)
    apart = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    wide = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    return em.reshape(em.broadcast(em.reshape(x, apart), wide), em.out_shape())


@converts("aten.flip.default")
def _flip(em: Emitter, x: Any, dims: Sequence[int]) -> Any:
    for dim in dims:
        x = em(op.flip(x, axis=dim % em.rank(x)))
    return x


@converts("aten.roll.default", keep=True)
def _roll(em: Emitter, x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """Each dim is cut in two, and the parts change places."""
    if not dims:
        flat = em.reshape(x, [math.prod(em.static_shape(x, "roll over all dims"))])
        return em.reshape(_roll_one(em, flat, shifts[0], 0), em.shape(x))
    for shift, dim in zip(shifts, dims, strict=True):
        x = _roll_one(em, x, shift, dim % em.rank(x))
    return x


def _roll_one(em: Emitter, x: Any, shift: Any, axis: int) -> Any:
    size = em.shape(x)[axis]
    if is_prim(shift) or (is_prim(size) and abs(shift) > 1):
        raise em.refuse("a shift or size that is not known when compiling")
    symbolic = size - shift if shift > 0 else -shift
    cut = symbolic if is_prim(size) else -shift % max(size, 1)
    if not is_prim(cut) and cut == 0:
        return x
    return em(op.concat([em.slice(x, axis, cut, size - cut), em.slice(x, axis, 0, cut)], axis=axis))


_PAD_MODES = {"reflection": "reflect", "replication": "replicate", "constant": "constant"}


@converts("aten.constant_pad_nd.default")
def _constant_pad(em: Emitter, x: Any, pads: Sequence[Any], value: Any = 0) -> Any:
    """Pairs from the last dim on; a negative number crops."""
    if any(map(is_prim, pads)):
        raise em.refuse("padding that is not known when compiling")
    rank = em.rank(x)
    widths = [0] * (2 * rank)
    for index in range(len(pads) // 2):
        before, after = pads[2 * index], pads[2 * index + 1]
        axis = rank - 1 - index
        if before < 0 or after < 0:
            kept = em.shape(x)[axis] + min(before, 0) + min(after, 0)
            x = em.slice(x, axis, max(-before, 0), kept)
        widths[2 * axis : 2 * axis + 2] = max(before, 0), max(after, 0)
    if not any(widths):
        return x
    if em.dtype(x) == "bool":
        return em.cast(em(op.nn.pad(em.cast(x, "int8"), widths, "constant", float(value))), "bool")
    return em(op.nn.pad(x, widths, "constant", float(value)))


def _pad(em: Emitter, x: Any, pads: Sequence[Any]) -> Any:
    if any(map(is_prim, pads)) or min(pads) < 0:
        raise em.refuse("padding that is negative, or not known when compiling")
    rank = em.rank(x)
    widths = [0] * (2 * rank)
    for index in range(len(pads) // 2):
        axis = rank - 1 - index
        widths[2 * axis : 2 * axis + 2] = pads[2 * index], pads[2 * index + 1]
    mode = em.node.target.name().split("::")[1].split("_")[0]
    return em(op.nn.pad(x, widths, _PAD_MODES[mode]))


for _kind in ("reflection", "replication"):
    for _rank in (1, 2, 3):
        converts(f"aten.{_kind}_pad{_rank}d.default", keep=True)(_pad)


@converts("aten.pixel_shuffle.default", keep=True)
def _pixel_shuffle(em: Emitter, x: Any, factor: int) -> Any:
    """x[..., c·r², h, w] → [..., c, h·r, w·r]."""
    *batch, channels, height, width = em.shape(x)
    apart = em.reshape(x, [*batch, channels // (factor * factor), factor, factor, height, width])
    n = len(batch)
    turned = em.permute(apart, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return em.reshape(turned, em.out_shape())
