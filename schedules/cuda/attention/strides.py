"""Where the heads of an operand lie in memory: one stride each for batches, heads and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from relaxc.schedules.cuda.attention.pages import Pages, Table, split_rows, table_of
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, Expr, Size, Var
from relaxc.schedules.template import Declined

__all__ = ["Heads", "Place", "heads_of", "place_of"]

Array = np.ndarray[Any, Any]

_UNIT = 8
"""Elements of 16 bits in the 16 bytes that the copy engine's strides are multiples of."""


@dataclass(frozen=True)
class Place:
    """An operand by rows: element (row, column) of head `i` is at `starts[i] + row * row_stride + column`.

    With `pages` the row is one of a page: `pages.start` and `pages.batches` are of the first head, and `tables` says
    where those of head `i` begin in the table.
    """

    buffer: Buffer
    starts: Array
    row_stride: int
    pages: Pages | None = None
    tables: Array | None = None


@dataclass(frozen=True)
class Heads:
    """Element (b, h, row, column) is at `(row_at + row) * rows + (head_at + h) * heads + b * batches + column`.

    With `pages`, `b` and `row` are the page and its row, as these say. How far heads and batches are apart may be known
    at the call alone.
    """

    buffer: Buffer
    rows: int
    heads: Size
    batches: Size
    row_at: int
    head_at: int
    pages: Pages | None = None


def place_of(
    buffer: Buffer, indices: Sequence[Expr], batch: Mapping[Var, int], row: tuple[Var, int], column: tuple[Var, int]
) -> Place | Declined:
    """Return where `buffer[indices]` is; the indices are in the variables of the batch, of a row and of a column."""
    bounds = {**batch, row[0]: row[1], column[0]: column[1]}
    table = table_of(indices)
    if table is not None:
        return table if isinstance(table, Declined) else _paged(buffer, table, batch, row, column)
    at = tir.flatten(list(indices), list(buffer.shape))
    rows, columns = (tir.stride(at, var, bounds) if size > 1 else 0 for var, size in (row, column))
    if rows is None or columns is None:
        return Declined("its rows or columns have no constant stride")
    if columns != 1 and column[1] > 1:
        return Declined("a head's row is not contiguous")
    zeros = {var: tir.zero(var) for var in (row[0], column[0])}
    first = tir.simplify(tir.substitute(at, zeros), bounds)
    return Place(buffer, _over(first, batch), rows if row[1] > 1 else 0)


def _paged(
    buffer: Buffer, table: Table, batch: Mapping[Var, int], row: tuple[Var, int], column: tuple[Var, int]
) -> Place | Declined:
    """The same of an operand whose rows lie in the pages that a table names."""
    bounds = {**batch, row[0]: row[1], column[0]: column[1], table.page: table.count}
    at = tir.simplify(tir.flatten(table.indices, list(buffer.shape)), bounds)
    entry = tir.flatten(list(table.load.indices), list(table.load.source.shape))
    stride, columns = (tir.stride(at, var, bounds) for var in (table.page, column[0]))
    if stride is None or columns != 1 or tir.uses(entry, [column[0]]):
        return Declined("a head's row in a page is not contiguous")
    zeros = {var: tir.zero(var) for var in (table.page, column[0])}
    parts = split_rows(tir.simplify(tir.substitute(at, zeros), bounds), tir.simplify(entry, bounds), row, bounds)
    if isinstance(parts, Declined):
        return parts
    first, start, rows, apart = parts
    tables = _over(start, batch)
    pages = Pages(table.load.source, rows, stride, table.count, int(tables[0]), 0, -(-row[1] // rows))
    return Place(buffer, _over(first, batch), apart, pages, tables)


def _over(position: Expr, batch: Mapping[Var, int]) -> Array:
    """The positions of all elements of a batch."""
    extents = list(batch.values())
    grid = np.indices(extents, dtype=np.int64).reshape(len(extents), -1) if extents else np.zeros((0, 1), np.int64)
    values = dict(zip(batch, grid, strict=True))
    return np.broadcast_to(_evaluate(position, values), (prod(extents),))


_OPERATORS: dict[type, Callable[..., Any]] = {
    tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply, tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod, tirx.Min: np.minimum, tirx.Max: np.maximum,
}  # fmt: skip


def _evaluate(expr: Expr, values: Mapping[Var, Array]) -> Any:
    """The integer `expr` for arrays of values of its variables."""
    if isinstance(expr, tirx.IntImm):
        return np.int64(expr.value)
    if isinstance(expr, tirx.Var):
        return next(value for var, value in values.items() if var.same_as(expr))
    if isinstance(expr, tirx.Cast):
        return _evaluate(expr.value, values)
    return _OPERATORS[type(expr)](_evaluate(expr.a, values), _evaluate(expr.b, values))


def heads_of(places: Mapping[str, Place], head: int) -> tuple[int, int, int, dict[str, Heads]] | Declined:
    """Return batches, heads, heads that share keys, and each operand's strides; `k` and `v` may be of shared heads."""
    total = len(places["q"].starts)
    for heads in (each for each in range(total, 0, -1) if total % each == 0):
        if any(_split(places[name].starts, heads, 1) is None for name in ("q", "out")):
            continue
        for group in (each for each in range(heads, 0, -1) if heads % each == 0):
            found = {name: _split(place.starts, heads, group if name in "kv" else 1) for name, place in places.items()}
            known = {name: each for name, each in found.items() if each is not None}
            if len(known) == len(found):
                strides = {name: _heads(places[name], known[name], head) for name in places}
                if all(isinstance(each, Heads) for each in strides.values()):
                    return total // heads, heads, group, strides  # type: ignore[return-value]
    return Declined("its heads have no constant strides in multiples of 16 bytes")


def _split(starts: Array, heads: int, group: int) -> tuple[int, int, int, int, int] | None:
    """(start, stride of batches, of heads, batches, heads) if that describes `starts`, which all of a group share."""
    grid = starts.reshape(-1, heads // group, group)
    batches, kinds, _ = grid.shape
    start = int(grid[0, 0, 0])
    by_batch = int(grid[1, 0, 0]) - start if batches > 1 else 0
    by_head = int(grid[0, 1, 0]) - start if kinds > 1 else 0
    wanted = start + np.arange(batches)[:, None, None] * by_batch + np.arange(kinds)[None, :, None] * by_head
    return (start, by_batch, by_head, batches, kinds) if bool((grid == wanted).all()) else None


def _heads(place: Place, found: tuple[int, int, int, int, int], head: int) -> Heads | None:
    """The strides, those of one element made up; None where the copy engine takes them not."""
    start, batches, heads, many_batches, many_heads = found
    pages = _tables(place, many_batches)
    if place.pages is not None and (pages is None or batches):
        return None
    rows = place.row_stride or -(-head // _UNIT) * _UNIT
    whole = -(-int(tir.product(list(place.buffer.shape))) // _UNIT) * _UNIT
    batches = pages.stride if pages is not None else batches if many_batches > 1 else whole
    heads = heads if many_heads > 1 else (start or whole)
    row_at = head_at = 0
    if not heads:  # all heads read the same, and their group is found to be larger
        return None
    if start % heads == 0:
        head_at = start // heads
    elif start % rows == 0 and place.row_stride and pages is None:
        row_at = start // rows
    else:
        return None
    fits = all(stride > 0 and stride % _UNIT == 0 for stride in (rows, heads, batches))
    return Heads(place.buffer, rows, heads, batches, row_at, head_at, pages) if fits else None


def _tables(place: Place, batches: int) -> Pages | None:
    """The pages with the stride of the table from batch to batch; None where it differs from head to head."""
    if place.pages is None or place.tables is None:
        return None
    tables = place.tables.reshape(batches, -1)
    apart = int(tables[1, 0] - tables[0, 0]) if batches > 1 else 0
    wanted = place.pages.start + np.arange(batches)[:, None] * apart
    return replace(place.pages, batches=apart) if bool((tables == wanted).all()) else None
