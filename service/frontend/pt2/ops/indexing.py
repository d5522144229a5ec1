"""Reads and writes at computed places. Indices are kept inside, so that no run reads or writes foreign memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter, is_prim
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op


@converts("aten.embedding.default")
def _embedding(em: Emitter, table: Any, ids: Any, *_: Any) -> Any:
    em.require_inside(ids, em.shape(table)[0], wrap=False)
    return em(op.take(table, ids, axis=0, mode="clip"))


@converts("aten.index_select.default")
def _index_select(em: Emitter, x: Any, dim: int, ids: Any) -> Any:
    if em.rank(x) == 0:
        return em.reshape(x, em.out_shape())
    axis = dim % em.rank(x)
    em.require_inside(ids, em.shape(x)[axis], wrap=False)
    return em(op.take(x, em.reshape(ids, [-1]) if em.rank(ids) == 0 else ids, axis=axis, mode="clip"))


@converts("aten.gather.default")
def _gather(em: Emitter, x: Any, dim: int, ids: Any, *_: Any) -> Any:
    if em.rank(x) == 0:
        return em.reshape(x, em.out_shape())
    axis = dim % em.rank(x)
    return em(op.gather_elements(x, em.index(ids, em.shape(x)[axis], wrap=False), axis=axis))


@converts("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _index(em: Emitter, x: Any, ids: Sequence[Any]) -> Any:
    """x[..., ids, ...]: one tensor is a take; several are flattened into one index over the dims that they cover."""
    axes = [axis for axis, index in enumerate(ids) if index is not None]
    if any(em.dtype(ids[axis]) in ("bool", "uint8") for axis in axes):
        raise em.refuse("a boolean mask as index gives a shape that depends on the data")
    shape = em.shape(x)
    if len(axes) == 1:
        return em(op.take(x, em.index(ids[axes[0]], shape[axes[0]]), axis=axes[0], mode="clip"))
    others = [axis for axis in range(em.rank(x)) if axis not in axes]
    flat_index, size = _flat_index(em, [ids[axis] for axis in axes], [shape[axis] for axis in axes])
    moved = em.permute(x, [*axes, *others])
    flat = em.reshape(moved, [size, *(shape[axis] for axis in others)])
    taken = em(op.take(flat, flat_index, axis=0, mode="clip"))
    return _place(em, taken, em.rank(flat_index), axes)


def _flat_index(em: Emitter, ids: list[Any], sizes: list[Any]) -> tuple[Any, Any]:
    """Row-major position over dims of `sizes`, and how many positions there are."""
    position: Any = None
    total: Any = 1
    for index, size in zip(ids, sizes, strict=True):
        inside = em.cast(em.index(index, size), "int64")
        if position is not None:
            position = em(op.add(em(op.multiply(position, em.tensor(size, "int64"))), inside))
        else:
            position = inside
        total = total * size
    return position, total


def _place(em: Emitter, taken: Any, index_rank: int, axes: list[int]) -> Any:
    """The index's dims go where the first indexed dim was, or to the front when the indexed dims are apart."""
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    if not adjacent or axes[0] == 0:
        return taken
    rank, before = em.rank(taken), axes[0]
    kept = list(range(index_rank, rank))
    return em.permute(taken, [*kept[:before], *range(index_rank), *kept[before:]])


@converts("aten.index_put.default", "aten._unsafe_index_put.default")
def _index_put(em: Emitter, x: Any, ids: Sequence[Any], values: Any, accumulate: bool = False, *_: Any) -> Any:
    """x with values at x[ids]; a mask with one value is a where."""
    axes = [axis for axis, index in enumerate(ids) if index is not None]
    if len(axes) == 1 and em.dtype(ids[axes[0]]) == "bool":
        return _masked_put(em, x, ids[axes[0]], axes[0], values, accumulate)
    if any(em.dtype(ids[axis]) in ("bool", "uint8") for axis in axes):
        raise em.refuse("a boolean mask as index gives a shape that depends on the data")
    if accumulate and em.dtype(x) == "bool":
        raise em.refuse("a sum of booleans")
    shape = em.shape(x)
    for axis in axes:
        em.guarded(ids[axis], shape[axis], wrap=True)
    if len(axes) == 1 and em.rank(ids[axes[0]]) == 1 and not accumulate:
        return _put_along(em, x, axes[0], em.index(ids[axes[0]], shape[axes[0]]), values)
    others = [axis for axis in range(em.rank(x)) if axis not in axes]
    order = [*axes, *others]
    position, size = _flat_index(em, [ids[axis] for axis in axes], [shape[axis] for axis in axes])
    rest = [shape[axis] for axis in others]
    region = _region(em, values, em.shape(position), rest, axes)
    flat = em.reshape(em.permute(x, order), [size, *rest])
    where = em.reshape(position, [*em.shape(position), 1])
    region = em.cast(region, em.dtype(x))
    if accumulate:
        region = em.unharmed(region, lambda: em(op.zeros_like(region)))
    else:
        region = em.unharmed(region, lambda: em(op.take(flat, position, axis=0, mode="clip")))
    written = em(op.scatter_nd(flat, where, region, "add" if accumulate else "update"))
    back = em.reshape(written, [shape[axis] for axis in order])
    return em.permute(back, [order.index(axis) for axis in range(len(order))])


@converts("aten.index_copy.default", keep=True)
def _index_copy(em: Emitter, x: Any, dim: int, ids: Any, source: Any) -> Any:
    if em.rank(x) == 0:
        return em.cast(em.reshape(source, []), em.dtype(x))
    axis = dim % em.rank(x)
    size, ids = em.shape(x)[axis], em.reshape(ids, [-1]) if em.rank(ids) == 0 else ids
    em.guarded(ids, size, wrap=False)
    return _put_along(em, x, axis, em.index(ids, size, wrap=False), source)


def _put_along(em: Emitter, x: Any, axis: int, inside: Any, values: Any) -> Any:
    """x with values where an axis has these indices: each is a row of its own, and nothing else is touched."""
    shape = em.shape(x)
    shape[axis] = em.shape(inside)[0]
    rows = em.broadcast(em.cast(values, em.dtype(x)), shape)
    places = em.broadcast(em.reshape(inside, [shape[axis]] + [1] * (em.rank(x) - axis - 1)), shape)
    rows = em.unharmed(rows, lambda: em(op.gather_elements(x, places, axis=axis)))
    return em(op.scatter_elements(x, places, rows, axis=axis, reduction="update"))


def _region(em: Emitter, values: Any, index: list[Any], rest: list[Any], axes: list[int]) -> Any:
    """The values broadcast to what is written, the index's dims first."""
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if adjacent else 0
    region = em.broadcast(values, [*rest[:before], *index, *rest[before:]])
    if before == 0:
        return region
    n = len(index)
    return em.permute(region, [*range(before, before + n), *range(before), *range(before + n, em.rank(region))])


def _masked_put(em: Emitter, x: Any, mask: Any, axis: int, values: Any, accumulate: bool) -> Any:
    if any(size != 1 for size in em.shape(values)) or accumulate:
        raise em.refuse("values at a boolean mask depend on how many are true")
    after = em.rank(x) - axis - em.rank(mask)
    mask = em.reshape(mask, [*em.shape(mask), *([1] * after)])
    return em(op.where(mask, em.reshape(em.cast(values, em.dtype(x)), []), x))


@converts("aten.masked_scatter.default")
def _masked_scatter(em: Emitter, x: Any, mask: Any, source: Any) -> Any:
    """x with the next value of the source wherever the mask is true, in the order of both."""
    size = math.prod(em.shape(source))
    flat = em.reshape(em.broadcast(em.cast(mask, "bool"), em.shape(x)), [-1])
    before = em(op.subtract(em(op.cumsum(em.cast(flat, "int64"), 0)), em.tensor(1, "int64")))
    ids = em(op.where(flat, before, em.tensor(0, "int64")))
    em.require_inside(ids, size, wrap=False)
    values = em(op.take(em.reshape(em.cast(source, em.dtype(x)), [-1]), ids, axis=0, mode="clip"))
    return em(op.where(em.reshape(flat, em.shape(x)), em.reshape(values, em.shape(x)), x))


@converts("aten.scatter.src", "aten.scatter.value", "aten.scatter_add.default")
def _scatter(em: Emitter, x: Any, dim: int, ids: Any, values: Any) -> Any:
    if em.rank(x) == 0:
        raise em.refuse("a scatter into one number")
    reduction = "add" if em.node.target.name() == "aten::scatter_add" else "update"
    return _scatter_into(em, x, dim, ids, values, reduction)


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@converts("aten.scatter_reduce.two")
def _scatter_reduce(em: Emitter, x: Any, dim: int, ids: Any, values: Any, reduce: str, include: bool = True) -> Any:
    if reduce not in _REDUCTIONS or not include or em.rank(x) == 0:
        raise em.refuse(f"scatter_reduce {reduce!r}, include_self={include}")
    return _scatter_into(em, x, dim, ids, values, _REDUCTIONS[reduce])


def _scatter_into(em: Emitter, x: Any, dim: int, ids: Any, values: Any, reduction: str) -> Any:
    if reduction != "update" and em.dtype(x) == "bool":
        raise em.refuse("a sum of booleans")
    axis, shape = dim % em.rank(x), em.shape(ids)
    if isinstance(values, int | float | bool) or is_prim(values):
        values = em.broadcast(em.tensor(values, em.dtype(x)), shape)
    for index, size in enumerate(shape):  # torch reads only as much of the values as there are indices
        values = em.slice(values, index, 0, size)
    em.guarded(ids, em.shape(x)[axis], wrap=False)
    inside = em.index(ids, em.shape(x)[axis], wrap=False)
    values = em.unharmed(values, lambda: _unchanged(em, x, inside, axis, reduction))
    return em(op.scatter_elements(x, inside, values, axis=axis, reduction=reduction))


def _unchanged(em: Emitter, x: Any, inside: Any, axis: int, reduction: str) -> Any:
    """Values that leave x as it is: what is there, the sum's 0 or the product's 1."""
    if reduction in ("add", "mul"):
        return em(op.full(relax.ShapeExpr(em.shape(inside)), em.const(reduction == "mul", em.dtype(x)), em.dtype(x)))
    return em(op.gather_elements(x, inside, axis=axis))


@converts("aten.slice_scatter.default")
def _slice_scatter(
    em: Emitter, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """x with a slice replaced: what is before, the source, what is after; a mask and a take for a step."""
    axis = dim % em.rank(x)
    size, length = em.shape(x)[axis], em.shape(source)[axis]
    begin = _begin(em, start, size)
    if step != 1:
        return _stepped_scatter(em, x, source, axis, begin, length, step)
    return _spliced(em, x, em.cast(source, em.dtype(x)), axis, begin, begin + length)


def _begin(em: Emitter, start: Any, size: Any) -> Any:
    if start is None:
        return 0
    if is_prim(start):
        return start
    if start < 0:
        return size + start
    return min(start, size) if not is_prim(size) else start


def _spliced(em: Emitter, x: Any, source: Any, axis: int, begin: Any, end: Any) -> Any:
    size = em.shape(x)[axis]
    parts = [source]
    if is_prim(begin) or begin > 0:
        parts.insert(0, em.slice(x, axis, 0, begin))
    if is_prim(size) or is_prim(end) or end < size:
        parts.append(em.slice(x, axis, end, size - end))
    return parts[0] if len(parts) == 1 else em(op.concat(parts, axis=axis))


def _stepped_scatter(em: Emitter, x: Any, source: Any, axis: int, begin: Any, length: Any, step: int) -> Any:
    rank, size = em.rank(x), em.shape(x)[axis]
    place = em(op.subtract(em(op.arange(0, size, 1, "int64")), em.tensor(begin, "int64")))
    count = em(op.floor_divide(place, em.const(step, "int64")))
    on_step = em(op.equal(em(op.floor_mod(place, em.const(step, "int64"))), em.const(0, "int64")))
    started = em(op.greater_equal(place, em.const(0, "int64")))
    before_end = em(op.less(count, em.tensor(length, "int64")))
    hit = em(op.logical_and(on_step, em(op.logical_and(started, before_end))))
    taken = em(op.take(em.cast(source, em.dtype(x)), em.index(count, length, wrap=False), axis=axis, mode="clip"))
    return em(op.where(em.reshape(hit, [size] + [1] * (rank - axis - 1)), taken, x))


@converts("aten.select_scatter.default")
def _select_scatter(em: Emitter, x: Any, source: Any, dim: int, index: Any) -> Any:
    axis = dim % em.rank(x)
    size = em.shape(x)[axis]
    begin = index if is_prim(index) or index >= 0 else size + index
    shape = em.shape(x)
    shape[axis] = 1
    return _spliced(em, x, em.reshape(em.cast(source, em.dtype(x)), shape), axis, begin, begin + 1)


@converts("aten.sort.default")
def _sort(em: Emitter, x: Any, dim: int = -1, descending: bool = False) -> Any:
    """Values and where they were."""
    if em.rank(x) == 0:
        return x, em.const(0, "int64")
    axis = dim % em.rank(x)
    order = em(op.argsort(em.wide(x), axis=axis, descending=descending, dtype="int64"))
    return em(op.gather_elements(x, order, axis=axis)), order


@converts("aten.sort.stable")
def _stable_sort(em: Emitter, x: Any, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    return _sort(em, x, dim, descending)


@converts("aten.topk.default")
def _topk(em: Emitter, x: Any, k: Any, dim: int = -1, largest: bool = True, *_: Any) -> Any:
    if is_prim(k) or em.rank(x) == 0:
        raise em.refuse("a count that is not known when compiling")
    found = em(op.topk(em.wide(x), k=k, axis=dim % em.rank(x), ret_type="both", largest=largest, dtype="int64"))
    return em.cast(em(relax.TupleGetItem(found, 0)), em.out_dtype(0)), em(relax.TupleGetItem(found, 1))


@converts("aten.diagonal.default")
def _diagonal(em: Emitter, x: Any, offset: int = 0, first: int = 0, second: int = 1) -> Any:
    """The diagonal of two dims, as the last dim of the result."""
    rank = em.rank(x)
    first, second = first % rank, second % rank
    others = [axis for axis in range(rank) if axis not in (first, second)]
    rows, columns = em.static_shape(x, "diagonal")[first], em.static_shape(x, "diagonal")[second]
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    flat = em.reshape(em.permute(x, [*others, first, second]), [*(em.shape(x)[a] for a in others), rows * columns])
    begin = max(offset, 0) - min(offset, 0) * columns
    if length == 0 or math.prod(em.shape(flat)) == 0:
        raise em.refuse("an empty diagonal")
    return em.slice(flat, rank - 2, begin, length, columns + 1)
