"""The values of one head of attention: packed into panels for the blocks of queries of a task, or where they are."""

from __future__ import annotations

from tvm import tirx

from relaxc.schedules.cpu.attention.form import Attention, Blocking, Index
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import buffer, loop, store, unrolled, vectorized
from relaxc.schedules.ir.types import Buffer, Expr, Stmt

__all__ = ["Values"]


class Values:
    """The values of one head, packed or where they are."""

    def __init__(self, a: Attention, p: Blocking, batch: Index) -> None:
        self.a, self.p, self.batch = a, p, batch
        self.wide = p.columns * p.value_lanes
        self.panel = None
        if p.copies:
            self.panel = buffer("panel", a.width // self.wide, int(tir.as_int(a.keys) or 0), self.wide, dtype=a.dtype)

    @property
    def buffers(self) -> list[Buffer]:
        return [] if self.panel is None else [self.panel]

    def pack(self) -> list[Stmt]:
        """Return the statement `panel[e // wide, n, e % wide] = v[n, e]`"""
        if self.panel is None:
            return []

        def row(n: Expr, part: Expr) -> Stmt:
            def lane(column: Expr, at: Expr) -> Stmt:
                place = column * self.p.value_lanes + at
                value = self.a.value(self.batch, n, part * self.wide + place)
                return store(self.panel, value, part, n, place)

            return unrolled(self.p.columns, lambda c: vectorized(self.p.value_lanes, lambda at: lane(c, at)))

        parts = self.a.width // self.wide
        return [loop(self.a.keys, lambda n: loop(parts, lambda part: row(n, part), name="part"), name="n")]

    def load(self, n: Expr, part: Expr, place: Expr) -> Expr:
        """Key n's value at `place` in part `part` of the columns."""
        if self.panel is None:
            return self.a.value(self.batch, n, part * self.wide + place)
        return tirx.BufferLoad(self.panel, [part, n, place])
