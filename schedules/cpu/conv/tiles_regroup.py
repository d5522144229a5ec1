"""The copy of an image's part that a convolution by tile registers (AMX) reads: 64 bytes of channels a pixel."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from relaxc.schedules.cpu.conv.tiles_plan import Tasks
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import loop, sequence, store, unrolled, vectorized
from relaxc.schedules.ir.types import Buffer, Expr, SBlock, Size, Stmt

__all__ = ["Regrouped", "bound"]


@dataclass(frozen=True, slots=True)
class Regrouped:
    """`into[i, f, y, x, d] = A[n, channel(part + i, d), row(f, first + y), column(f, x)]`, and 0 where there is none.

    `block` is that of the whole image in S-TIR, whose value says what A is.
    """

    tasks: Tasks
    block: SBlock
    into: Buffer
    n: Expr
    part: Expr
    first: Expr

    def fill(self) -> Stmt:
        """Return the loops that fill the buffer."""
        layout = self.tasks.layout
        rest = layout.in_blocks % layout.parts

        def depth(i: Expr) -> Stmt:
            if not rest:
                return self._phases(i, layout.parts)
            is_last = tirx.floormod(i, layout.depths).equal(tir.index_const(layout.depths - 1))
            cut = self._phases(i, rest)
            return cut if layout.depths == 1 else tirx.IfThenElse(is_last, cut, self._phases(i, layout.parts))

        return loop(self.tasks.source_parts, depth)

    def _phases(self, i: Expr, blocks: int) -> Stmt:
        """All phases of a part of the channels, whose first `blocks` blocks there are."""

        def line(phase: int) -> Stmt:
            return loop(self.tasks.source_rows, lambda y: self._line(i, phase, y, blocks))

        return sequence(*map(line, range(self.tasks.layout.phases)))

    def _line(self, i: Expr, phase: int, y: Expr, blocks: int) -> Stmt:
        """A row of a phase: of zeros, or of pixels with zeros around them."""
        layout, rows, columns = self.tasks.layout, self.tasks.layout.rows, self.tasks.layout.columns
        down, across = divmod(phase, columns.phases)
        begin, end = columns.inside(across)

        def pixels(start: int, stop: int, count: int) -> list[Stmt]:
            def pixel(x: Expr) -> Stmt:
                return self._pixel(i, phase, y, start + x, count)

            return [loop(stop - start, pixel)] if stop > start else []

        there = sequence(*pixels(0, begin, 0), *pixels(begin, end, blocks), *pixels(end, columns.extent, 0))
        if not self.tasks.leaves_image:
            return there
        row = (self.first + y) * rows.stride + (down * rows.unit - rows.before)
        is_inside = tirx.all(row >= 0, row < layout.rows.size)
        return tirx.IfThenElse(is_inside, there, *pixels(0, columns.extent, 0))

    def _pixel(self, i: Expr, phase: int, y: Expr, x: Expr, blocks: int) -> Stmt:
        """A row of a register: `blocks` of channels, then zeros."""
        layout = self.tasks.layout
        base = ((i * layout.phases + phase) * self.tasks.source_rows + y) * layout.columns.extent + x

        def those(start: int, stop: int, *, there: bool) -> list[Stmt]:
            def block(at: Expr) -> Stmt:
                return vectorized(layout.lanes, lambda lane: element((start + at) * layout.lanes + lane))

            def element(d: Expr) -> Stmt:
                value = self._value(self.n, self.part + i, phase, self.first + y, x, d) if there else self._zero
                return store(self.into, value, base * layout.depth + d)

            return [unrolled(stop - start, block)] if stop > start else []

        return sequence(*those(0, blocks, there=True), *those(blocks, layout.parts, there=False))

    def _value(self, *at: Size) -> Expr:
        """The value at an index that is inside."""
        value = self.block.body.value
        inner = value.args[1] if self.tasks.layout.guarded else value
        return tir.substitute(inner, bound(self.block, at))

    @property
    def _zero(self) -> Expr:
        return tirx.const(0, str(self.into.dtype))


def bound(block: SBlock, values: tuple[Size, ...]) -> dict[Expr, Expr]:
    """Return the block's variables with these values, in the type of each."""
    variables = [axis.var for axis in block.iter_vars]
    return {var: tir.size(value).astype(str(var.ty.dtype)) for var, value in zip(variables, values, strict=True)}
