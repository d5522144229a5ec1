"""Attention of one block of queries whose operands are pairs of 16 bits; sums and the softmax in the scores' dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tvm import tirx

from relaxc.schedules.cpu.attention.form import Attention, Index
from relaxc.schedules.cpu.attention.query_block import QueryBlock
from relaxc.schedules.cpu.attention.words import (
    PAIR,
    Blocking,
    Heads,
    each_vector,
    joined,
    narrow_row,
    rounded,
    word_buffer,
    words_of,
)
from relaxc.schedules.cpu.attention.words import dtypes as kinds
from relaxc.schedules.cpu.common.transposed_tile import transposed
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import block, buffer, loop, ramp, sequence, store, unrolled, vectorized
from relaxc.schedules.ir.types import Buffer, Expr, Stmt

__all__ = ["InWords", "Product", "WordQueries"]


class Product(Protocol):
    """How `rows` of sums are computed: `c[first + i, m] = sum over k of left(i, k) * b[k, m]`, of pairs in words."""

    def sums(
        self, c: Buffer, first: Expr, rows: int, left: Callable[[Expr | int, Expr | int], Expr], b: Buffer
    ) -> Stmt:
        """Return the statement; `left` is a load whose second index is along memory."""

    def exponential(self, value: Expr) -> Expr:
        """Return `exp(value)` of a vector, which is rounded to 16 bits."""

    def around(self, task: Stmt) -> Stmt:
        """See `Task`."""

    def with_code(self, body: Stmt) -> Stmt:
        """See `Task`."""


class InWords:
    """Tasks on pairs of 16 bits; see `Task`."""

    def __init__(self, a: Attention, p: Blocking, product: Product) -> None:
        self.a, self.p, self.product = a, p, product
        self.vectors, self.lanes, self.tiles = p.vectors, p.lanes, p.tiles
        self.around, self.with_code = product.around, product.with_code

    def of_head(self, batch: Index) -> Heads:
        """See `Task`."""
        return Heads(self.a, self.p, batch)

    def of_block(self, head: Heads, vectors: int, start: Expr) -> Stmt:
        """See `Task`."""
        return WordQueries(self.a, self.p, vectors, head, start, self.product).statement()


class WordQueries(QueryBlock):
    """One block of queries, from `start`.

    qt[d / 2, m] = pairs of q[m, d];  s[n, m] = logit(k · q);  w[n / 2, m] = pairs of exp(s[n, m] - top[m])
    r[e, m] = sum over n of v[e, n] * w[n, m];  out[m, e] = r[e, m] / total[m]

    Queries are in the lanes everywhere, and so both products are of one kind, and the softmax is elementwise.
    """

    def __init__(self, a: Attention, p: Blocking, vectors: int, heads: Heads, start: Expr, product: Product) -> None:
        super().__init__(a, p, vectors, heads.batch, start)
        self.p, self.heads, self.product = p, heads, product
        self.all_keys, steps = p.keys_of(a), p.steps_of(a)
        self.block = p.block
        self.online = steps > 1
        self.transposed = word_buffer("transposed", p.depth_of(a), self.span)
        self.scores = self._buffer("scores", -(-self.block // p.keys) * p.keys, self.span)
        self.weights = word_buffer("weights", self.block // PAIR, self.span)
        self.results, self.partial = (self._buffer(name, a.width, self.span) for name in ("results", "partial"))
        self.buffers = [self.transposed, self.scores, self.weights, self.results, self.factor, self.top, self.total]
        self.buffers += [self.partial] if self.online else []

    def statement(self) -> Stmt:
        """Everything that is computed for the block."""
        steps = [self._transpose(), *self._begin()]
        if self.online:
            steps.append(self._columns_of(lambda e, m: self._set(self.partial, 0.0, e, m)))
            steps.append(loop(self.p.steps_of(self.a), self._online_step, name="step"))
        else:
            count, step = tir.index_const(self.all_keys), tir.index_const(0)
            steps += [self._scores(step, count), self._exponentials(count), self._results(step, count)]
        steps += [self._each(self._inverse), self._finish_all()]
        if self.a.masked == "never_nan":
            steps.append(self._rows_inside(self._without_nan))
        return block("attention_block", sequence(*steps), self.buffers)

    def _online_step(self, step: Expr) -> Stmt:
        count = tirx.min(tir.size(self.block), self.all_keys - step * self.block)

        def add(e: Expr, m: Expr) -> Stmt:
            return store(self.partial, self.partial[e, m] * self.factor[m] + self.results[e, m], e, m)

        return sequence(
            self._each(lambda m: store(self.factor, self.top[m], m)),
            self._scores(step, count),
            self._each(self._rescaled),
            self._exponentials(count),
            self._results(step, count),
            self._columns_of(add),
        )

    def _columns_of(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        return loop(self.a.width, lambda e: self._each(lambda m: body(e, m)), name="e")

    def _transpose(self) -> Stmt:
        """`transposed[d / 2, m]` are pairs of `q[start + m, d]`; past the last query, of that one again."""
        a, lanes = self.a, self.p.lanes

        def query(m: Expr, d: Expr) -> Expr:
            row = self.start + m
            return a.query(self.batch, tirx.min(row, a.queries - 1) if self.has_rest else row, d)

        def square(v: Expr, first: Expr | int) -> Stmt:
            def fill(tile: Buffer) -> Stmt:
                return unrolled(lanes, lambda i: row(tile, i))

            def row(tile: Buffer, i: Expr) -> Stmt:
                place = ramp(i * lanes, lanes)
                return words_of(
                    lanes, a.depth, lambda d: query(v * lanes + i, d), first, lambda words: store(tile, words, place)
                )

            def write(j: int, vector: Expr) -> Stmt:
                at = tirx.floordiv(tir.size(first), PAIR) + j
                return store(self.transposed, vector, at, ramp(v * lanes, lanes))

            body, tiles = transposed(lanes, fill, write, dtype=kinds["word"])
            return block("attention_transpose", body, tiles)

        return loop(self.vectors, lambda v: each_vector(self.p, a.depth, lambda first: square(v, first)), name="v")

    def _scores(self, step: Expr, count: Expr) -> Stmt:
        """`scores[n, m] = logit(k[first + n] · q[m])`, and the maxima."""
        a, keys, first = self.a, self.p.keys, step * self.block

        def tile(number: Expr) -> Stmt:
            def key(i: Expr | int, d: Expr | int) -> Expr:
                return tirx.BufferLoad(self.heads.keys, [first + number * keys + i, tir.size(d)])

            return self.product.sums(self.scores, number * keys, keys, key, self.transposed)

        def logit(n: Expr, m: Expr) -> Stmt:
            value = a.logit(self.scores[n, m], self.batch, self.start + m, first + n)
            top = store(self.top, tirx.max(self.top[m], self.scores[n, m]), m)
            return sequence(store(self.scores, value, n, m), top)

        return sequence(
            loop(tir.ceil_div(count, keys), tile, name="n"),
            loop(count, lambda n: self._each(lambda m: logit(n, m)), name="n"),
        )

    def _exponentials(self, count: Expr) -> Stmt:
        """`weights[n / 2, m]`, with zeros behind the last key."""
        held = [narrow_row(name, self.span) for name in ("even", "odd")]
        powers = self._buffer("powers", self.span, scope="local")

        def power(n: Expr, v: Expr) -> Stmt:
            m = ramp(v * self.lanes, self.lanes)
            score, top = tirx.BufferLoad(self.scores, [n, m]), tirx.BufferLoad(self.top, [m])
            return store(powers, self.product.exponential(score - top), m)

        def weight(n: Expr, odd: int) -> Stmt:
            def of(m: Expr) -> Stmt:
                total = store(self.total, self.total[m] + powers[m], m)
                return sequence(total, store(held[odd], rounded(powers[m]), m))

            return sequence(unrolled(self.vectors, lambda v: power(n, v)), self._each(of))

        def pair(at: Expr) -> Stmt:
            both = self._each(lambda m: store(self.weights, joined(held[0][m], held[1][m]), at, m))
            return sequence(weight(at * PAIR, 0), weight(at * PAIR + 1, 1), both)

        pairs, room = tir.ceil_div(count, PAIR), self.block // PAIR
        zero = tirx.const(0, kinds["word"])
        steps = []
        if self.all_keys % PAIR:  # the last exponential is that of -∞
            last = self._each(lambda m: self._set(self.scores, -float("inf"), count, m))
            steps.append(tirx.IfThenElse(tirx.floormod(count, PAIR) == 1, last, None))
        steps.append(loop(pairs, pair, name="n"))
        if self.all_keys % self.block:
            behind = loop(room - pairs, lambda n: self._each(lambda m: store(self.weights, zero, pairs + n, m)))
            steps.append(behind)
        return block("attention_weights", sequence(*steps), [*held, powers])

    def _results(self, step: Expr, count: Expr) -> Stmt:
        """`results[e, m] = sum over n of v[e, first + n] * weights[n, m]`"""
        del count  # behind them are zeros
        rows = self.p.rows

        def tile(number: Expr) -> Stmt:
            def value(i: Expr | int, n: Expr | int) -> Expr:
                return tirx.BufferLoad(self.heads.values, [step, number * rows + i, tir.size(n)])

            return self.product.sums(self.results, number * rows, rows, value, self.weights)

        return loop(self.a.width // rows, tile, name="e")

    def _finish_all(self) -> Stmt:
        """`out[start + m, e] = factor[m] * r[e, m]`, transposed in registers."""
        lanes, source = self.p.lanes, self.partial if self.online else self.results
        rows = buffer("rows", lanes, lanes, dtype=self.a.dtype)

        def square(v: Expr, e: Expr) -> Stmt:
            def scaled(i: Expr, m: Expr) -> Expr:
                return source[e * lanes + i, v * lanes + m] * self.factor[v * lanes + m]

            def fill(tile: Buffer) -> Stmt:
                return unrolled(lanes, lambda i: vectorized(lanes, lambda m: store(tile, scaled(i, m), i * lanes + m)))

            def write(j: int, vector: Expr) -> Stmt:
                return store(rows, vector, tir.index_const(j), ramp(tir.index_const(0), lanes))

            def out(j: Expr) -> Stmt:
                m = v * lanes + j
                row = vectorized(lanes, lambda i: self.a.store(rows[j, i], self.batch, self.start + m, e * lanes + i))
                return self._if_inside(m, row)

            body, tiles = transposed(lanes, fill, write, dtype=self.a.dtype)
            return block("attention_out", sequence(body, loop(lanes, out, name="m")), [*tiles, rows])

        return loop(self.vectors, lambda v: loop(self.a.width // lanes, lambda e: square(v, e), name="e"), name="v")
