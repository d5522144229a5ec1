"""The loops of tiled attention: tasks of a head and some of its blocks of queries."""

from __future__ import annotations

from typing import Any, Protocol

from tvm import tirx

from relaxc.schedules.cpu.attention.form import Attention, Blocking, Index
from relaxc.schedules.cpu.attention.queries import Queries
from relaxc.schedules.cpu.attention.values import Values
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import block, loop, sequence
from relaxc.schedules.ir.types import Expr, Size, Stmt

__all__ = ["Plain", "Task", "attention_loops"]


class Task(Protocol):
    """What a task does for all of its blocks of queries, and for one of them."""

    vectors: int
    """Of queries in a block."""
    lanes: int
    tiles: int
    """Blocks of queries."""

    def of_head(self, batch: Index) -> Any:
        """Return what is packed once: `buffers`, and the statements of `pack()`."""

    def of_block(self, head: Any, vectors: int, start: Expr) -> Stmt:
        """Return what is computed for a block of `vectors` of queries."""

    def around(self, task: Stmt) -> Stmt:
        """Return a task with what must be done before it and behind."""

    def with_code(self, body: Stmt) -> Stmt:
        """Return the loop of tasks with what it calls."""


class Plain:
    """Tasks on values of any float type, in vectors."""

    def __init__(self, a: Attention, p: Blocking) -> None:
        self.a, self.p = a, p
        self.vectors, self.lanes, self.tiles = p.vectors, p.lanes, p.tiles

    def of_head(self, batch: Index) -> Values:
        """See `Task`."""
        return Values(self.a, self.p, batch)

    def of_block(self, head: Values, vectors: int, start: Expr) -> Stmt:
        """See `Task`."""
        return Queries(self.a, self.p, vectors, head.batch, head, start).statement()

    def around(self, task: Stmt) -> Stmt:
        """See `Task`."""
        return task

    def with_code(self, body: Stmt) -> Stmt:
        """See `Task`."""
        return body


def attention_loops(a: Attention, p: Task, *, parallel: bool) -> Stmt:
    """Return the root block of the kernel.

        for task (indices of the batch, `tiles` blocks of queries) in parallel:
            panel = v                                                      # if several blocks use it
            for block of queries:
                qt[d, m] = q[m, d]                                         # transposed in registers
                for n in tiles of keys: s[n, m] = logit(sum over d of k[n, d] * qt[d, m]);  top[m] = max(top[m], s)
                for n: s[n, m] = exp(s[n, m] - top[m]);  total[m] += s[n, m]
                for m, e in tiles: out[m, e] = (sum over n of s[n, m] * panel[n, e]) / total[m]

    The scores stand transposed, so that a vector has the same key for several queries: the maximum and the sum are
    elementwise. With more keys than `block`, the middle part runs for each block of keys, and what was
    summed is scaled by exp(old top - new top): Milakov and Gimelshein, 'Online normalizer calculation for softmax'
    (2018); Dao et al., 'FlashAttention' (2022).
    """
    span = p.vectors * p.lanes
    queries = tir.as_int(a.queries)
    left = 0 if queries is None else -(-queries // p.lanes) % p.vectors
    whole: Size = tir.ceil_div(a.queries, span) if queries is None else -(-queries // p.lanes) // p.vectors
    blocks = whole + (1 if left else 0)
    parts = tir.ceil_div(blocks, p.tiles)

    def task(at: Expr) -> Stmt:
        batch = tir.unflatten(at // parts, a.batch)
        head = p.of_head(batch)

        def each(tile: Expr) -> Stmt:
            number = (at % parts) * p.tiles + tile
            body = p.of_block(head, p.vectors, number * span) if whole_is_some else None
            if left:
                last = p.of_block(head, left, tir.size(whole) * span)
                body = last if body is None else tirx.IfThenElse(number < whole, body, last)
            exact = isinstance(blocks, int) and blocks % p.tiles == 0
            return body if exact else tirx.IfThenElse(number < blocks, body, None)

        steps = [*head.pack(), loop(p.tiles, each, name="tile")]
        return block("attention_task", p.around(sequence(*steps)), head.buffers)

    whole_is_some = not isinstance(whole, int) or whole > 0
    kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
    return block("root", p.with_code(loop(tir.product([*a.batch, parts]), task, kind, "task")), [])
