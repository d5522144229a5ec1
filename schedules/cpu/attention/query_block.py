"""A block of queries that stand in the lanes of vectors: what is done to each of them, whatever computes its scores."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from relaxc.schedules.cpu.attention.form import Attention, Index, Sizes
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import block, buffer, loop, sequence, store, unrolled, vectorized
from relaxc.schedules.ir.types import Buffer, Expr, Stmt

__all__ = ["QueryBlock"]


class QueryBlock:
    """`vectors` of queries from `start`, with the maximum, the sum and the factor of each."""

    def __init__(self, a: Attention, p: Sizes, vectors: int, batch: Index, start: Expr) -> None:
        self.a, self.vectors, self.batch, self.start = a, vectors, batch, start
        self.lanes, self.value_lanes = p.lanes, p.value_lanes
        self.span = vectors * p.lanes
        queries = tir.as_int(a.queries)
        self.has_rest = queries is None or bool(queries % p.lanes)
        self.factor = self._buffer("factor", self.span)
        self.top, self.total = (self._buffer(name, self.span, scope="local") for name in ("attention_top", "total"))

    def _begin(self) -> list[Stmt]:
        # Of a row of -∞ every exponential is then 0, and not exp(-∞ + ∞).
        lowest = tirx.min_value(self.a.dtype)
        return [
            self._each(lambda m: store(self.top, lowest, m)),
            self._each(lambda m: self._set(self.total, 0.0, m)),
        ]

    def _rescaled(self, m: Expr) -> Stmt:
        """`factor = exp(factor - top)` of a maximum that was there before, by which the sum is multiplied."""
        change = store(self.factor, tirx.exp(self.factor[m] - self.top[m]), m)
        return sequence(change, store(self.total, self.total[m] * self.factor[m], m))

    def _each(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """`body` for each query of the block, in vectors."""
        lanes = self.lanes
        return unrolled(self.vectors, lambda v: vectorized(lanes, lambda lane: body(v * lanes + lane)))

    def _set(self, target: Buffer, value: float, *indices: Expr) -> Stmt:
        return store(target, self._number(value), *indices)

    def _number(self, value: float) -> Expr:
        return tirx.const(value, self.a.dtype)

    def _buffer(self, name: str, *shape: int, scope: str = "global") -> Buffer:
        return buffer(name, *shape, dtype=self.a.dtype, scope=scope)

    def _inverse(self, m: Expr) -> Stmt:
        """`factor = 1 / total`; a row of -∞ has the total 0, and the results 0 too: 0 * (1 / 0) is NaN, 0 * 1 is 0."""
        one, total = self._number(1.0), self.total[m]
        if self.a.masked != "nan":
            total = tirx.Select(total == self._number(0.0), one, total)
        return store(self.factor, one / total, m)

    def _if_inside(self, m: Expr, statement: Stmt) -> Stmt:
        return tirx.IfThenElse(self.start + m < self.a.queries, statement, None) if self.has_rest else statement

    def _row(self, body: Callable[[Expr], Stmt]) -> Stmt:
        lanes = self.value_lanes
        parts = self.a.width // lanes
        return loop(parts, lambda part: vectorized(lanes, lambda lane: body(part * lanes + lane)), name="e")

    def _rows_inside(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop(self.span, lambda i: self._if_inside(i, body(i)), name="m")

    def _without_nan(self, m: Expr) -> Stmt:
        """A row whose total is NaN has the weights 0, which make NaN of a value that is not finite."""
        zero = self._buffer("zero", 1, scope="local")
        sums = self._buffer("zeros", self.a.width)

        def add(n: Expr, e: Expr) -> Stmt:
            return store(sums, sums[e] + zero[0] * self.a.value(self.batch, n, e), e)

        body = sequence(
            self._set(zero, 0.0, tir.index_const(0)),
            self._row(lambda e: self._set(sums, 0.0, e)),
            loop(self.a.keys, lambda n: self._row(lambda e: add(n, e)), name="n"),
            self._row(lambda e: self.a.store(sums[e], self.batch, self.start + m, e)),
        )
        rare = block("attention_nan", body, [zero, sums])
        return tirx.IfThenElse(tir.is_nan(self.factor[m]), rare, None)
