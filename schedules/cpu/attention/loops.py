"""The loops of tiled attention: tasks of a head and some of its blocks of queries."""

from __future__ import annotations

from tvm import tirx

from schedules.cpu.attention.form import Attention, Blocking
from schedules.cpu.attention.queries import Queries
from schedules.cpu.attention.values import Values
from schedules.ir import tir
from schedules.ir.statements import block, loop, sequence
from schedules.ir.types import Expr, Size, Stmt

__all__ = ["attention_loops"]


def attention_loops(a: Attention, p: Blocking, *, parallel: bool) -> Stmt:
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
        values = Values(a, p, batch)

        def each(tile: Expr) -> Stmt:
            number = (at % parts) * p.tiles + tile
            body = Queries(a, p, p.vectors, batch, values, number * span).statement() if whole_is_some else None
            if left:
                last = Queries(a, p, left, batch, values, tir.size(whole) * span).statement()
                body = last if body is None else tirx.IfThenElse(number < whole, body, last)
            exact = isinstance(blocks, int) and blocks % p.tiles == 0
            return body if exact else tirx.IfThenElse(number < blocks, body, None)

        steps = [*values.pack(), loop(p.tiles, each, name="tile")]
        return block("attention_task", sequence(*steps), values.buffers)

    whole_is_some = not isinstance(whole, int) or whole > 0
    kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
    return block("root", loop(tir.product([*a.batch, parts]), task, kind, "task"), [])
