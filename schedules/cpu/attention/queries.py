"""Attention of one block of queries, which stand in the lanes: elementwise maxima and sums, scores in the cache."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from schedules.cpu.attention.form import Attention, Blocking, Index
from schedules.cpu.attention.values import Values
from schedules.cpu.common.register_tile import divisors, unrolled_steps
from schedules.cpu.common.transposed_tile import is_square_of_two, transposed
from schedules.ir import tir
from schedules.ir.statements import block, buffer, loop, ramp, sequence, store, unrolled, vectorized
from schedules.ir.types import Buffer, Expr, Size, Stmt

__all__ = ["Queries"]


class Queries:
    """One block of queries, from `start`."""

    def __init__(self, a: Attention, p: Blocking, vectors: int, batch: Index, values: Values, start: Expr) -> None:
        self.a, self.p, self.vectors, self.batch, self.values, self.start = a, p, vectors, batch, values, start
        self.span = vectors * p.lanes
        self.rows = divisors(self.span, p.rows)[-1]
        keys, queries = tir.as_int(a.keys), tir.as_int(a.queries)
        self.block = p.block if keys is None else min(p.block, keys)
        self.online = keys is None or keys > self.block
        self.has_tail = keys is None or bool(self.block % p.keys or keys % self.block)
        self.has_rest = queries is None or bool(queries % p.lanes)
        padded = -(-self.block // p.keys) * p.keys
        self.transposed = self._buffer("transposed", a.depth, self.span)
        self.scores = self._buffer("scores", padded, self.span)
        self.factor = self._buffer("factor", self.span)
        self.partial = self._buffer("partial", self.span, a.width)
        self.top, self.total = (self._buffer(name, self.span, scope="local") for name in ("top", "total"))
        self.buffers = [self.transposed, self.scores, self.factor, self.top, self.total]
        self.buffers += [self.partial] if self.online else []

    def statement(self) -> Stmt:
        """Everything that is computed for the block."""
        # Of a row of -∞ every exponential is then 0, and not exp(-∞ + ∞).
        lowest = tirx.min_value(self.a.dtype)
        steps = [self._transpose(), self._each(lambda m: store(self.top, lowest, m))]
        steps.append(self._each(lambda m: self._set(self.total, 0.0, m)))
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

        def scale(m: Expr) -> Stmt:
            change = store(self.factor, tirx.exp(self.factor[m] - self.top[m]), m)
            return sequence(change, store(self.total, self.total[m] * self.factor[m], m))

        return sequence(
            self._each(lambda m: store(self.factor, self.top[m], m)),
            self._scores(first, count),
            self._each(scale),
            self._exponentials(count),
            self._results(first, count),
        )

    def _each(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """`body` for each query of the block, in vectors."""
        lanes = self.p.lanes
        return unrolled(self.vectors, lambda v: vectorized(lanes, lambda lane: body(v * lanes + lane)))

    def _set(self, target: Buffer, value: float, *indices: Expr) -> Stmt:
        return store(target, self._number(value), *indices)

    def _number(self, value: float) -> Expr:
        return tirx.const(value, self.a.dtype)

    def _buffer(self, name: str, *shape: int, scope: str = "global") -> Buffer:
        return buffer(name, *shape, dtype=self.a.dtype, scope=scope)

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

    def _inverse(self, m: Expr) -> Stmt:
        """`factor = 1 / total`; a row of -∞ has the total 0, and the results 0 too: 0 * (1 / 0) is NaN, 0 * 1 is 0."""
        one, total = self._number(1.0), self.total[m]
        if self.a.masked != "nan":
            total = tirx.Select(total == self._number(0.0), one, total)
        return store(self.factor, one / total, m)

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

    def _if_inside(self, m: Expr, statement: Stmt) -> Stmt:
        return tirx.IfThenElse(self.start + m < self.a.queries, statement, None) if self.has_rest else statement

    def _over_partial(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        return loop(self.span, lambda i: self._row(lambda e: body(i, e)))

    def _row(self, body: Callable[[Expr], Stmt]) -> Stmt:
        lanes = self.p.value_lanes
        parts = self.a.width // lanes
        return loop(parts, lambda part: vectorized(lanes, lambda lane: body(part * lanes + lane)), name="e")

    def _rows_inside(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop(self.span, lambda i: self._if_inside(i, body(i)), name="m")

    def _finish(self, m: Expr) -> Stmt:
        return self._row(lambda e: self._out(self.partial[m, e], m, e))

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
