"""Loops of a product with weights in codes whose rows are known at the call alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tvm import s_tir, tirx

from relaxc.schedules.cpu.gemm.open_epilogue import Epilogue, rows_of
from relaxc.schedules.cpu.gemm.open_nest import OpenNest
from relaxc.schedules.cpu.gemm.open_plan import Tile
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.statements import block, buffer, loop, prefetch, ramp, sequence, store
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Stmt
from relaxc.schedules.operators import BlockMatmul, Matmul
from relaxc.schedules.template import Declined

__all__ = ["in_floats", "open_blocks"]

_SHARED_ROWS = 2
"""Rows up to which A's share of a block is taken off its sums, and not its zero point off each value."""

_FEW_TILES = 2
"""Highest tiles up to which codes become floats in registers; for more rows a panel's do once, for all tiles."""

_AHEAD = 1024
"""Words ahead that are fetched: a page, at whose end hardware prefetchers stop."""


def in_floats(op: BlockMatmul) -> Matmul:
    """Return the product of floats and the codes as numbers, whose tiles it has."""
    return Matmul(m=op.m, n=op.n, k=op.k, operands=(op.operands[0], f"int{op.bits}"), accumulate=op.accumulate)


def open_blocks(
    func: PrimFunc, op: BlockMatmul, others: Sequence[SBlock], chosen: Mapping[str, int], cpu: Cpu
) -> PrimFunc | Declined:
    """Return `func` as `open_nest` does, for weights in codes; `others` are its elementwise blocks.

    Where a panel meets one tile or two, codes become floats in registers, as `blocks_compute` says. For more rows

        for task (block of rows, panels) in parallel, for panel:
            values[k, width] = (code[k, width] - zero[block of k, width]) * scale[block of k, width]
            for tile of h rows in the block: as with float weights, of `values`
    """
    sch = s_tir.Schedule(func)
    for other in others[:-1]:
        sch.compute_inline(other.name_hint)
    blocks = {str(each.block.name_hint): each.block for each in block_realizes(sch.mod["main"])}
    result = blocks["matmul"].body
    epilogue = Epilogue.of(blocks[others[-1].name_hint], result.buffer)
    if epilogue is None:
        return Declined("its epilogue is not over the product's rows and columns")

    def parameter(name: str, *dtypes: str, other: bool = False) -> Buffer | None:
        """What a block reads of the PrimFunc's own of a dtype, or of another than these."""
        found = [load.source for load in tir.loads(blocks[name].body.value)]
        of_dtype = [each for each in found if (str(each.dtype) in dtypes) != other]
        own = [each for each in of_dtype if any(each.same_as(one) for one in func.params)]
        return own[0] if own else None

    data, words = parameter("partial", op.operands[0]), parameter("partial", op.operands[1])
    scales, zeros = parameter("matmul", op.accumulate), parameter("matmul", op.accumulate, other=True)
    if data is None or words is None or scales is None or (zeros is None) == op.zeros:
        return Declined("its operands are no parameters that lie as its plan says")
    codes = _Codes(op, words, scales, zeros, chosen["block"])
    return func.with_body(_BlocksNest(in_floats(op), (data, words), epilogue, chosen, cpu, codes).body())


@dataclass(frozen=True)
class _Codes:
    """The packed weights, and what they stand for, in vectors of `lanes`; see `blocks_compute`."""

    op: BlockMatmul
    words: Buffer
    scales: Buffer
    zeros: Buffer | None
    lanes: int

    @property
    def middle(self) -> float:
        """What is taken off a value at once."""
        return 1.5 if self.op.bits == 8 else 0.0

    @property
    def is_centred(self) -> bool:
        """Whether the value of every zero point is 0."""
        return self.zeros is None and self.middle == 1.5

    def value(self, panel: Expr, word: Expr, column: int, code: int) -> Expr:
        """Return `1 + code / 2^bits`, less the middle, of the words at `column` of a panel."""
        word_type, dtype = self.op.operands[1], self.op.accumulate
        mantissa = int(np.finfo(dtype).nmant)
        words = tirx.BufferLoad(self.words, [panel, word, ramp(tir.index_const(column), self.lanes)])
        up = mantissa - self.op.bits - code * self.op.bits
        shift = tirx.shift_left if up >= 0 else tirx.shift_right
        moved = shift(words, self._all(abs(up), word_type))
        mask = (1 << mantissa) - (1 << mantissa - self.op.bits)
        one = int(np.ones((), dtype).view(word_type))
        bits = tirx.bitwise_or(tirx.bitwise_and(moved, self._all(mask, word_type)), self._all(one, word_type))
        value = tirx.reinterpret(f"{dtype}x{self.lanes}", bits)
        return value - self._all(self.middle, dtype) if self.middle else value

    def zero(self, panel: Expr, at: Expr, column: int) -> Expr:
        """Return what `value` gives for a block's zero points."""
        dtype = self.op.accumulate
        if self.zeros is None:
            return self._all(1.5 - self.middle, dtype)
        found = tirx.BufferLoad(self.zeros, [panel, at, ramp(tir.index_const(column), self.lanes)])
        parts = found.astype(f"{dtype}x{self.lanes}") * self._all(1 / (1 << self.op.bits), dtype)
        return parts + self._all(1 - self.middle, dtype)

    def scale(self, panel: Expr, at: Expr, column: int) -> Expr:
        """Return the scales of a block, times 2^bits."""
        return tirx.BufferLoad(self.scales, [panel, at, ramp(tir.index_const(column), self.lanes)])

    def fetched(self, panel: Expr, word: Expr) -> Stmt:
        """Return what fetches words that come a page later; past the last it does nothing."""
        return prefetch(tirx.BufferLoad(self.words, [panel, word, tir.index_const(_AHEAD)]))

    def _all(self, value: float, dtype: str) -> Expr:
        return tirx.Broadcast(tirx.const(value, dtype), self.lanes)


class _NestOfCodes(OpenNest):
    """What both nests have: how many blocks the depth has, and words each of them."""

    def __init__(
        self,
        op: Matmul,
        operands: tuple[Buffer, Buffer],
        epilogue: Epilogue,
        chosen: Mapping[str, int],
        cpu: Cpu,
        codes: _Codes,
    ) -> None:
        super().__init__(op, operands, epilogue, chosen, cpu)
        self.codes, self.fetches = codes, False
        self.blocks, self.words = op.k // codes.op.block, codes.op.block // codes.op.codes_in_word


class _UnpackedNest(_NestOfCodes):
    """The nest of floats that a panel's codes have become."""

    @cached_property
    def values(self) -> Buffer:
        """Return the room for the floats of a panel."""
        return buffer("values", self.op.k * self.layout.width, dtype=self.op.accumulate)

    def of_panel(self, panel: Expr, loops: Stmt) -> Stmt:
        """See `OpenNest`."""
        codes, lanes, many = self.codes, self.layout.lanes, self.codes.op.codes_in_word

        def unpacked(b: Expr, w: Expr) -> Stmt:
            word = b * self.words + w
            parts = [codes.fetched(panel, word)]
            for code in range(many):
                for column in range(0, self.layout.width, lanes):
                    exact = codes.value(panel, word, column, code) - codes.zero(panel, b, column)
                    place = ramp((word * many + code) * self.layout.width + column, lanes)
                    parts.append(store(self.values, exact * codes.scale(panel, b, column), place))
            return sequence(*parts)

        def of_block(b: Expr) -> Stmt:
            return loop(self.words, lambda w: unpacked(b, w), name="w")

        return block("panel", sequence(loop(self.blocks, of_block, name="b"), loops), [self.values])

    def _right(self, panel: Expr, k: Expr, column: int) -> Expr:
        del panel
        return tirx.BufferLoad(self.values, [ramp(k * self.layout.width + column, self.layout.lanes)])


class _BlocksNest(_NestOfCodes):
    """The nest of one product with weights in codes."""

    def of_height(self, tiles: Sequence[Tile], height: Expr) -> Stmt:
        """See `OpenNest`."""
        highest = tiles[0]
        high = [tile for tile in tiles if tile.abreast == highest.abreast == 1 and 2 * tile.rows >= highest.rows]
        inline = super().of_height(tiles, height)
        if not high:
            return inline
        many = tirx.all(self.rows > _FEW_TILES * highest.rows, height >= high[-1].rows)
        unpacked = _UnpackedNest(self.op, (self.data, self.weight), self.epilogue, self.chosen, self.cpu, self.codes)
        return tirx.IfThenElse(many, unpacked.tasks(high, height), inline)

    def product(self, tile: Tile, first: Expr, panel: Expr, before: Expr, sums: Buffer) -> Stmt:
        """See `OpenNest`."""
        del before
        shared = tile.rows <= _SHARED_ROWS and not self.codes.is_centred
        lanes, vectors, dtype = self.layout.lanes, tile.abreast * self.layout.vectors, self.op.accumulate
        size = tile.rows * vectors * lanes
        total, acc = (buffer(name, size, dtype=dtype, scope="local") for name in ("total", "acc"))
        share = buffer("share", tile.rows, dtype=dtype, scope="local")
        zero = tirx.Broadcast(tirx.const(0, dtype), lanes)
        places = [(i, v) for i in range(tile.rows) for v in range(vectors)]

        def at(i: int, v: int) -> Expr:
            return ramp(tir.index_const((i * vectors + v) * lanes), lanes)

        def of_block(b: Expr) -> Stmt:
            begin = [store(acc, zero, at(*place)) for place in places]
            inner = loop(self.words, lambda w: self._word(tile, first, panel, b * self.words + w, acc), name="w")
            end = []
            for i, v in places:
                where, column = self._columns_of(panel, v)
                added = acc[at(i, v)]
                if shared:
                    added = added - self.codes.zero(where, b, column) * tirx.Broadcast(share[i], lanes)
                end.append(store(total, total[at(i, v)] + self.codes.scale(where, b, column) * added, at(i, v)))
            shares = [self._share(first + i, b, share, i) for i in range(tile.rows) if shared]
            return sequence(*shares, *begin, inner, *end)

        cleared = [store(total, zero, at(*place)) for place in places]
        moved = [store(sums, total[at(*place)], at(*place)) for place in places]
        body = sequence(*cleared, loop(self.blocks, of_block, name="b"), *moved)
        return block("product", body, [total, acc, *([share] if shared else [])])

    def _columns_of(self, panel: Expr, v: int) -> tuple[Expr, int]:
        """The panel of a vector of those from `panel` on, and its first column there."""
        p, within = divmod(v, self.layout.vectors)
        return panel + p, within * self.layout.lanes

    def _word(self, tile: Tile, first: Expr, panel: Expr, word: Expr, acc: Buffer) -> Stmt:
        """The products with the codes of a word of each column."""
        many, lanes, vectors = self.codes.op.codes_in_word, self.layout.lanes, tile.abreast * self.layout.vectors
        places = [self._columns_of(panel, v) for v in range(vectors)]
        parts: list[Stmt] = [self.codes.fetched(panel + p, word) for p in range(tile.abreast)]
        for code in range(many):
            values = [self.codes.value(where, word, column, code) for where, column in places]
            if tile.rows > _SHARED_ROWS and not self.codes.is_centred:
                zeros = [self.codes.zero(where, tirx.floordiv(word, self.words), column) for where, column in places]
                values = [value - zero for value, zero in zip(values, zeros, strict=True)]
            for i in range(tile.rows):
                left = self._left(first + i, word * many + code)
                for v, value in enumerate(values):
                    at = ramp(tir.index_const((i * vectors + v) * lanes), lanes)
                    parts.append(store(acc, acc[at] + left * value, at))
        return sequence(*parts)

    def _share(self, row: Expr, b: Expr, share: Buffer, i: int) -> Stmt:
        """`share[i]`: the sum of a block of a row of A."""
        size, lanes = self.codes.op.block, self.layout.lanes
        index = tir.index_const(i)

        def element(k: Expr) -> Expr:
            return tirx.BufferLoad(self.data, rows_of(self.data.shape, row, b * size + k)).astype(self.op.accumulate)

        if size % lanes:
            begin = store(share, tirx.const(0, self.op.accumulate), index)
            return sequence(begin, loop(size, lambda k: store(share, share[i] + element(k), index), name="s"))
        parts = [
            tirx.BufferLoad(self.data, rows_of(self.data.shape, row, ramp(b * size + k, lanes)))
            for k in range(0, size, lanes)
        ]
        held = buffer("lanes", lanes, dtype=self.op.accumulate, scope="local")
        whole = store(held, _tree(parts), ramp(tir.index_const(0), lanes))
        return block(
            "share", sequence(whole, store(share, _tree([held[lane] for lane in range(lanes)]), index)), [held]
        )


def _tree(parts: Sequence[Expr]) -> Expr:
    """The sum of the parts, by halves."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return _tree(parts[:middle]) + _tree(parts[middle:])
