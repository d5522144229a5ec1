"""Where the heads of operands lie whose batch or length is known at the call: as `strides`, by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx

from relaxc.schedules.cuda.attention.strides import Heads
from relaxc.schedules.ir import positions, tir
from relaxc.schedules.ir.types import Buffer, Expr, Size, Var
from relaxc.schedules.template import Declined

__all__ = ["OpenPlace", "open_heads_of", "open_place_of"]

_UNIT = 8
"""Elements of 16 bits in the 16 bytes that are copied at once."""


@dataclass(frozen=True)
class OpenPlace:
    """An operand by rows: element (row, column) is at `start + row * row_stride + column`, `start` of the batch."""

    buffer: Buffer
    start: Expr
    row_stride: int


def open_place_of(
    buffer: Buffer, indices: Sequence[Expr], batch: Mapping[Var, Size], row: tuple[Var, Size], column: tuple[Var, int]
) -> OpenPlace | Declined:
    """Return where `buffer[indices]` is; the indices are in the variables of the batch, of a row and of a column."""
    bounds = {**batch, row[0]: row[1], column[0]: column[1]}
    if any(tir.loads(index) for index in indices):
        return Declined("its rows lie in pages, and sizes are known at the call alone")
    at = positions.simplify(tir.flatten(list(indices), list(buffer.shape)), bounds)
    rows, columns = (positions.step(at, var, bounds) for var in (row[0], column[0]))
    if rows is None or columns is None or tir.as_int(columns) != 1:
        return Declined("a head's row is not contiguous, or its rows have no constant stride")
    known = tir.as_int(rows)
    if known is None or known % _UNIT:
        return Declined("its rows lie apart by a size that is known at the call alone, or no multiple of 16 bytes")
    zeros = {var: tir.zero(var) for var in (row[0], column[0])}
    start = positions.simplify(tir.substitute(at, zeros), bounds)
    return OpenPlace(buffer, start, known or column[1])


def open_heads_of(
    places: Mapping[str, OpenPlace], batch: Mapping[str, Sequence[tuple[Var, Size]]]
) -> tuple[Size, int, int, dict[str, Heads]] | Declined:
    """Return batches, heads, heads that share keys, and each operand's strides, as `heads_of` does.

    The last axis of the batch is that of heads, where its size is known, and the one before it that of batches.
    """
    axes = [size for _, size in batch["q"]]
    heads = axes[-1] if axes and isinstance(axes[-1], int) else 1
    outer = axes[:-1] if heads != 1 or (axes and axes[-1] == 1) else axes
    if len([size for size in outer if tir.as_int(size) != 1]) > 1:
        return Declined("its batch has several axes")
    for group in (each for each in range(heads, 0, -1) if heads % each == 0):
        found = {
            name: _strides(place, batch[name], heads, group if name in "kv" else 1) for name, place in places.items()
        }
        if all(found.values()):
            strides = {name: each for name, each in found.items() if each is not None}
            return tir.product(outer), heads, group, strides
    return Declined("its heads have no constant strides in multiples of 16 bytes")


def _strides(place: OpenPlace, batch: Sequence[tuple[Var, Size]], heads: int, group: int) -> Heads | None:
    """The strides where `group` heads of the batch are one; None where they are not."""
    bounds = dict(batch)
    start = place.start
    by_head: Size = 0
    outer = list(batch)
    if heads != 1:
        var, _ = outer.pop()
        head, inner = (tirx.Var(name, str(var.ty.dtype)) for name in ("head", "inner"))
        start = tir.substitute(start, {var: head * group + inner})
        bounds |= {head: heads // group, inner: group}
        start = positions.simplify(start, bounds)
        if tir.uses(start, [inner]):
            return None
        if (step := positions.step(start, head, bounds)) is None:
            return None
        by_head, start = _size(step), tir.substitute(start, {head: tir.zero(head)})
    by_batch: Size = 0
    for var, size in outer:
        if tir.as_int(size) != 1:
            if (step := positions.step(start, var, bounds)) is None:
                return None
            by_batch = _size(step)
        start = tir.substitute(start, {var: tir.zero(var)})
    first = tir.as_int(tir.simplify(start))
    return None if first is None else _placed(place, first, by_head, by_batch)


def _placed(place: OpenPlace, first: int, by_head: Size, by_batch: Size) -> Heads | None:
    """With the first element as heads, or rows, that are passed over."""
    if any(not _is_aligned(each) for each in (by_head, by_batch, first)):
        return None
    if first == 0:
        return Heads(place.buffer, place.row_stride, by_head, by_batch, 0, 0)
    if by_head == 0:  # one head: what is before it counts as such
        return Heads(place.buffer, place.row_stride, first, by_batch, 0, 1)
    if isinstance(by_head, int) and first % by_head == 0:
        return Heads(place.buffer, place.row_stride, by_head, by_batch, 0, first // by_head)
    if first % place.row_stride == 0:
        return Heads(place.buffer, place.row_stride, by_head, by_batch, first // place.row_stride, 0)
    return None


def _size(step: Expr) -> Size:
    known = tir.as_int(step)
    return step if known is None else known


def _is_aligned(stride: Size) -> bool:
    return tir.as_int(tir.simplify(tirx.floormod(tir.size(stride), _UNIT))) == 0
