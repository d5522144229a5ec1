"""Rows of attention's operands that lie in pages: which page, a table of integers says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, Expr, Size, Var
from relaxc.schedules.template import Declined

__all__ = ["Pages", "Table", "split_rows", "table_of"]


@dataclass(frozen=True)
class Pages:
    """Row `n` of batch `b` is row `n % rows` of page `clip(table[start + b * batches + n / rows], 0, count - 1)`.

    `stride` elements are between the beginnings of two pages. The table has `entries` for a batch.
    """

    table: Buffer
    rows: int
    stride: int
    count: int
    start: int
    batches: int
    entries: int


@dataclass(frozen=True)
class Table:
    """The load of a table within indices: what stands for it in `indices`, and where it reads."""

    load: TensorLoad
    page: Var
    count: int
    """The pages of the cache."""
    indices: tuple[Expr, ...]


def table_of(indices: Sequence[Expr]) -> Table | Declined | None:
    """Return the table that the indices of a load read, or None where they read none."""
    loads = [load for index in indices for load in tir.loads(index)]
    if not loads:
        return None
    clips = [node for index in indices for node in tir.collect(index, tirx.Max) if _is_clip(node)]
    if not clips or any(not tir.same(clips[0], clip) for clip in clips):
        return Declined("the numbers of its pages are not clipped into the cache")
    page = tir.fresh("page")
    replaced = tuple(
        tvm_ffi.structural_map(index, (tirx.Max, lambda node: page if tir.same(node, clips[0]) else node))
        for index in indices
    )
    if any(tir.loads(index) for index in replaced):
        return Declined("its rows lie in pages of several tables")
    return Table(loads[0], page, int(clips[0].a.b) + 1, replaced)


def _is_clip(node: Expr) -> bool:
    """Whether `node` is `max(min(table[…], last), 0)`."""
    if tir.as_int(node.b) != 0 or not isinstance(node.a, tirx.Min) or tir.as_int(node.a.b) is None:
        return False
    value = node.a.a.value if isinstance(node.a.a, tirx.Cast) else node.a.a
    return isinstance(value, TensorLoad)


def split_rows(
    at: Expr, table: Expr, row: tuple[Var, int], bounds: Mapping[Var, Size]
) -> tuple[Expr, Expr, int, int] | Declined:
    """Return positions in the cache and the table at row 0, the rows of a page, and how far apart they are."""
    var, keys = row
    rows = {
        value
        for node in (*tir.collect(at, tirx.FloorMod), *tir.collect(table, tirx.FloorDiv))
        if tir.same_var(node.a, var) and (value := tir.as_int(node.b)) is not None
    }
    if not rows:  # one page has them all, or each has one
        rows = {1 if tir.uses(table, [var]) else keys}
    if len(rows) > 1:
        return Declined("the rows of its pages are no number")
    size = rows.pop()
    entry, within = tir.fresh("entry"), tir.fresh("within")
    inside = {each: extent for each, extent in bounds.items() if not each.same_as(var)}
    inside |= {entry: -(-keys // size), within: size}
    parts = {var: entry * size + within}
    at, table = (tir.simplify(tir.substitute(each, parts), inside) for each in (at, table))
    found = [tir.stride(each, which, inside) for each in (at, table) for which in (entry, within)]
    across, apart, by_entry, by_row = found
    one_page = -(-keys // size) == 1
    if across != 0 or apart is None or not (by_entry == 1 or one_page) or by_row != 0:
        return Declined("its rows are not those of pages one after the other")
    zeros = {entry: tir.zero(entry), within: tir.zero(within)}
    first, start = (tir.simplify(tir.substitute(each, zeros), inside) for each in (at, table))
    return first, start, size, apart
