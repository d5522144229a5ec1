"""Operands of attention in pairs: two numbers of 16 bits beside each other in a word, as instructions multiply them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from relaxc.schedules.cpu.attention.form import Attention, Index, Sizes
from relaxc.schedules.cpu.common.transposed_tile import transposed
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import block, buffer, loop, ramp, sequence, store, unrolled, vectorized
from relaxc.schedules.ir.types import Buffer, Expr, Stmt

__all__ = [
    "PAIR",
    "Blocking",
    "Heads",
    "each_vector",
    "joined",
    "narrow_row",
    "rounded",
    "word_buffer",
    "words_of",
]

dtypes = {"half": "bfloat16", "bits": "uint16", "word": "uint32"}

PAIR = 2
_SHIFT = 16


@dataclass(frozen=True, kw_only=True)
class Blocking(Sizes):
    """Tiles are as wide as the block of queries; `rows` are columns of a head."""

    def depth_of(self, a: Attention) -> int:
        """Return the depth in words, filled up to whole vectors of them."""
        return -(-a.depth // (PAIR * self.lanes)) * self.lanes

    def keys_of(self, a: Attention) -> int:
        """Return all keys: how many there are must be known."""
        return int(tir.as_int(a.keys) or 0)

    def steps_of(self, a: Attention) -> int:
        """Return the steps of the softmax."""
        return -(-self.keys_of(a) // self.block)


def word_buffer(name: str, *shape: int) -> Buffer:
    """Return a buffer of pairs."""
    return buffer(name, *shape, dtype=dtypes["word"])


def joined(first: Expr, second: Expr) -> Expr:
    """Return two numbers of 16 bits as one word, the first in its lower half."""
    low, high = (tirx.Cast(dtypes["word"], tirx.reinterpret(dtypes["bits"], each)) for each in (first, second))
    return low | tirx.shift_left(high, tirx.const(_SHIFT, dtypes["word"]))


def rounded(value: Expr) -> Expr:
    """Return a value in 16 bits: what was widened from them as it was."""
    if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == dtypes["half"]:
        return value.value
    return tirx.Cast(dtypes["half"], value)


def narrow_row(name: str, size: int) -> Buffer:
    """Return a buffer of `size` numbers of 16 bits that should stay in registers."""
    return buffer(name, size, dtype=dtypes["half"], scope="local")


def words_of(
    lanes: int, depth: int, row: Callable[[Expr], Expr], first: Expr | int, write: Callable[[Expr], Stmt]
) -> Stmt:
    """Return `write(a vector of pairs of row(d))`, d from `first`: a number where it is the last of the depth."""
    size = PAIR * lanes
    held = narrow_row("row", size)
    vector = tirx.reinterpret(f"{dtypes['word']}x{lanes}", tirx.BufferLoad(held, [ramp(tir.index_const(0), size)]))
    left = min(size, depth - first) if isinstance(first, int) else size
    if left == size:
        fill = vectorized(size, lambda d: store(held, rounded(row(tir.size(first) + d)), d))
    else:
        zero = tirx.const(0, dtypes["half"])
        fill = sequence(
            *(store(held, rounded(row(tir.index_const(first + d))), tir.index_const(d)) for d in range(left)),
            *(store(held, zero, tir.index_const(d)) for d in range(left, size)),
        )
    return block("attention_words", sequence(fill, write(vector)), [held])


def each_vector(p: Blocking, depth: int, body: Callable[[Expr | int], Stmt]) -> Stmt:
    """Return `body(first)` for each vector of pairs of the depth: the first of its numbers."""
    size = PAIR * p.lanes
    whole = [loop(depth // size, lambda at: body(at * size), name="d")] if depth >= size else []
    rest = [body(depth // size * size)] if depth % size else []
    return sequence(*whole, *rest)


class Heads:
    """Keys and values of one head, packed for the blocks of queries of a task.

    Keys are rows of pairs of the depth, `keys[n, d / 2]`; values are transposed, so that pairs are of keys:
    `values[step, e, n / 2]` with zeros behind the last.
    """

    def __init__(self, a: Attention, p: Blocking, batch: Index) -> None:
        self.a, self.p, self.batch = a, p, batch
        all_keys = p.keys_of(a)
        self.rows = (p.steps_of(a) - 1) * p.block + -(-min(p.block, all_keys) // p.keys) * p.keys
        self.keys = word_buffer("keys", self.rows, p.depth_of(a))
        self.values = word_buffer("values", p.steps_of(a), a.width, p.block // PAIR)

    @property
    def buffers(self) -> list[Buffer]:
        return [self.keys, self.values]

    def pack(self) -> list[Stmt]:
        """Return the statements that pack both."""
        a, p = self.a, self.p

        def row(n: Expr) -> Stmt:
            return each_vector(p, a.depth, lambda first: self._key(n, first))

        def pairs(step: Expr, at: Expr) -> Stmt:
            return loop(a.width // p.lanes, lambda e: self._square(step, at, e * p.lanes), name="e")

        squares = p.block // (PAIR * p.lanes)
        return [
            loop(p.keys_of(a), row, name="n"),
            loop(p.steps_of(a), lambda step: loop(squares, lambda at: pairs(step, at), name="n"), name="step"),
        ]

    def _key(self, n: Expr, first: Expr | int) -> Stmt:
        place = ramp(tirx.floordiv(tir.size(first), PAIR), self.p.lanes)
        return words_of(
            self.p.lanes,
            self.a.depth,
            lambda d: self.a.key(self.batch, n, d),
            first,
            lambda vector: store(self.keys, vector, n, place),
        )

    def _square(self, step: Expr, at: Expr, first: Expr) -> Stmt:
        """Pairs of `lanes` keys by as many columns, transposed in registers."""
        a, p, all_keys = self.a, self.p, self.p.keys_of(self.a)
        held = [narrow_row(name, p.lanes) for name in ("even", "odd")]
        is_padded = all_keys < p.steps_of(a) * p.block
        zero = tirx.const(0, dtypes["word"])

        def pair(tile: Buffer, i: Expr) -> Stmt:
            n = step * p.block + (at * p.lanes + i) * PAIR

            def value(odd: int, e: Expr) -> Expr:
                key = tirx.min(n + odd, all_keys - 1) if is_padded else n + odd
                return rounded(a.value(self.batch, key, first + e))

            def word(e: Expr) -> Expr:
                both = joined(held[0][e], held[1][e])
                if not is_padded:
                    return both
                lower = joined(held[0][e], tirx.const(0, dtypes["half"])) if all_keys % PAIR else both
                some = tirx.Select(n < all_keys, lower, zero)
                return tirx.Select(n + 1 < all_keys, both, some)

            def fill(odd: int) -> Stmt:
                return vectorized(p.lanes, lambda e: store(held[odd], value(odd, e), e))

            return sequence(fill(0), fill(1), vectorized(p.lanes, lambda e: store(tile, word(e), i * p.lanes + e)))

        def write(j: int, vector: Expr) -> Stmt:
            return store(self.values, vector, step, first + j, ramp(at * p.lanes, p.lanes))

        body, tiles = transposed(
            p.lanes, lambda tile: unrolled(p.lanes, lambda i: pair(tile, i)), write, dtype=dtypes["word"]
        )
        return block("attention_values", body, [*tiles, *held])
