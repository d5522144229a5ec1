"""Attention of one block of queries, which stand in the lanes: elementwise maxima and sums, scores in the cache."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from relaxc.schedules.cpu.attention.form import Attention, Blocking, Index
from relaxc.schedules.cpu.attention.query_block import QueryBlock
from relaxc.schedules.cpu.attention.values import Values
from relaxc.schedules.cpu.common.register_tile import divisors, unrolled_steps
from relaxc.schedules.cpu.common.transposed_tile import is_square_of_two, transposed
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import block, loop, ramp, sequence, store, unrolled, vectorized
from relaxc.schedules.ir.types import Buffer, Expr, Size, Stmt

__all__ = ["Queries"]


class Queries(QueryBlock):
    """One block of queries, from `start`."""

    def __init__(self, a: Attention, p: Blocking, vectors: int, batch: Index, values: Values, start: Expr) -> None:
        super().__init__(a, p, vectors, batch, start)
        self.p, self.values = p, values
        self.rows = divisors(self.span, p.rows)[-1]
        keys = tir.as_int(a.keys)
        self.block = p.block if keys is None else min(p.block, keys)
        self.online = keys is None or keys > self.block
        self.has_tail = keys is None or bool(self.block % p.keys or keys % self.block)
        padded = -(-self.block // p.keys) * p.keys
        self.transposed = self._buffer("transposed", a.depth, self.span)
        self.scores = self._buffer("scores", padded, self.span)
        self.partial = self._buffer("partial", self.span, a.width)
        self.buffers = [self.transposed, self.scores, self.factor, self.top, self.total]
        self.buffers += [self.partial] if self.online else []

    def statement(self) -> Stmt:
        """Everything that is computed for the block."""
        steps = [self._transpose(), *self._begin()]
        if self.online:
            steps.append(self._over_partial(lambda i, e: self._set(self.partial, 0.0, i, e)))
            steps.append(loop(tir.ceil_div(self.a.keys, self.block), self._online_step, name="step"))
            steps += [self._each(self._inverse), self._rows_inside(self._finish)]
        else:
            steps += [self._scores(0, self.a.keys), self._exponentials(self.a.keys), self._each(self._inverse)]
            steps.append(self._results(0, self.a.keys))
        if self.a.masked == "never_nan":
            steps.append(self._rows_inside(self._without_nan))
        return block("attention_block", sequence(*steps), self.buffers)

    def _online_step(self, step: Expr) -> Stmt:
        first = step * self.block
        count = tirx.min(tir.size(self.block), self.a.keys - first)

        return sequence(
            self._each(lambda m: store(self.factor, self.top[m], m)),
            self._scores(first, count),
            self._each(self._rescaled),
            self._exponentials(count),
            self._results(first, count),
        )

    def _transpose(self) -> Stmt:
        """`transposed[d, m] = q[start + m, d]`; past the last query, that one again."""
        a, lanes = self.a, self.p.lanes

        def query(m: Expr, d: Expr) -> Expr:
            row = self.start + m
            return a.query(self.batch, tirx.min(row, a.queries - 1) if self.has_rest else row, d)

        def square(v: Expr, d: Expr) -> Stmt:
            def fill(tile: Buffer) -> Stmt:
                return unrolled(lanes, lambda i: vectorized(lanes, lambda j: cell(tile, i, j)))

            def cell(tile: Buffer, i: Expr, j: Expr) -> Stmt:
                return store(tile, query(v * lanes + i, d * lanes + j), i * lanes + j)

            def write(j: int, vector: Expr) -> Stmt:
                return store(self.transposed, vector, d * lanes + j, ramp(v * lanes, lanes))

            body, tiles = transposed(lanes, fill, write, dtype=a.dtype)
            return block("attention_transpose", body, tiles)

        whole = a.depth // lanes if is_square_of_two(lanes) else 0
        steps = [loop(self.vectors, lambda v: loop(whole, lambda d: square(v, d)))] if whole else []
        if a.depth > whole * lanes:
            rest = a.depth - whole * lanes
            steps.append(
                loop(rest, lambda d: self._each(lambda m: self._copy_query(query, m, whole * lanes + d)), name="d")
            )
        return sequence(*steps)

    def _copy_query(self, query: Callable[[Expr, Expr], Expr], m: Expr, d: Expr) -> Stmt:
        return store(self.transposed, query(m, d), d, m)

    def _scores(self, first: Size, count: Size) -> Stmt:
        """`scores[n, m] = logit(k[first + n] · q[m])` and the maxima; past the last key, that one again."""
        a, keys = self.a, self.p.keys
        steps = unrolled_steps(a.depth)

        def tile(number: Expr) -> Stmt:
            sums = self._buffer("sums", keys, self.span, scope="local")

            def key(i: Expr) -> Expr:
                n = first + number * keys + i
                return tirx.min(n, a.keys - 1) if self.has_tail else n

            def add(i: Expr, m: Expr, d: Expr) -> Stmt:
                return store(sums, sums[i, m] + a.key(self.batch, key(i), d) * self.transposed[d, m], i, m)

            def write(i: Expr, m: Expr) -> Stmt:
                n = number * keys + i
                logit = store(self.scores, a.logit(sums[i, m], self.batch, self.start + m, key(i)), n, m)
                return sequence(logit, store(self.top, tirx.max(self.top[m], self.scores[n, m]), m))

            def each(body: Callable[[Expr, Expr], Stmt]) -> Stmt:
                return unrolled(keys, lambda i: self._each(lambda m: body(i, m)))

            def depth(outer: Expr) -> Stmt:
                return unrolled(steps, lambda inner: each(lambda i, m: add(i, m, outer * steps + inner)))

            body = sequence(
                each(lambda i, m: self._set(sums, 0.0, i, m)), loop(a.depth // steps, depth, name="d"), each(write)
            )
            return block("attention_scores", body, [sums])

        return loop(tir.ceil_div(count, keys), tile, name="n")

    def _exponentials(self, count: Size) -> Stmt:
        def exponential(n: Expr, m: Expr) -> Stmt:
            power = store(self.scores, tirx.exp(self.scores[n, m] - self.top[m]), n, m)
            return sequence(power, store(self.total, self.total[m] + self.scores[n, m], m))

        return loop(count, lambda n: self._each(lambda m: exponential(n, m)), name="n")

    def _results(self, first: Size, count: Size) -> Stmt:
        """`out[m, e] = factor[m] * sum of scores[n, m] * v[first + n, e]`, or the sum onto the scaled `partial`."""
        wide = self.values.wide

        def tile(part: Expr, number: Expr) -> Stmt:
            sums = self._buffer("results", self.rows, wide, scope="local")

            def row(i: Expr) -> Expr:
                return number * self.rows + i

            def each(body: Callable[[Expr, Expr], Stmt]) -> Stmt:
                return unrolled(self.rows, lambda i: self._columns(lambda e: body(i, e)))

            def begin(i: Expr, e: Expr) -> Stmt:
                if not self.online:
                    return self._set(sums, 0.0, i, e)
                return store(sums, self.partial[row(i), part * wide + e] * self.factor[row(i)], i, e)

            def add(n: Expr, i: Expr, e: Expr) -> Stmt:
                value = self.values.load(first + n, part, e)
                return store(sums, sums[i, e] + self.scores[n, row(i)] * value, i, e)

            def write(i: Expr, e: Expr) -> Stmt:
                return self._out(sums[i, e], row(i), part * wide + e)

            if self.online:
                end = each(lambda i, e: store(self.partial, sums[i, e], row(i), part * wide + e))
            else:
                end = unrolled(self.rows, lambda i: self._if_inside(row(i), self._columns(lambda e: write(i, e))))
            body = sequence(each(begin), loop(count, lambda n: each(lambda i, e: add(n, i, e)), name="n"), end)
            return block("attention_results", body, [sums])

        numbers = self.span // self.rows
        if self.has_rest:
            numbers = tir.ceil_div(tirx.min(tir.size(self.span), self.a.queries - self.start), self.rows)
        parts = self.a.width // wide
        return loop(parts, lambda part: loop(numbers, lambda number: tile(part, number), name="m"), name="part")

    def _columns(self, body: Callable[[Expr], Stmt]) -> Stmt:
        lanes = self.p.value_lanes
        return unrolled(self.p.columns, lambda c: vectorized(lanes, lambda lane: body(c * lanes + lane)))

    def _out(self, value: Expr, m: Expr, e: Expr) -> Stmt:
        return self.a.store(value * self.factor[m], self.batch, self.start + m, e)

    def _over_partial(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        return loop(self.span, lambda i: self._row(lambda e: body(i, e)))

    def _finish(self, m: Expr) -> Stmt:
        return self._row(lambda e: self._out(self.partial[m, e], m, e))
