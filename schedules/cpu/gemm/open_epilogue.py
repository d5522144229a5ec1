"""What becomes of the sums of a product whose rows are known at the call alone: its epilogue, a row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, Expr, SBlock, Stmt, TensorLoad, Var

__all__ = ["Epilogue", "rows_of"]


@dataclass(frozen=True)
class Epilogue:
    """What becomes of a sum, over the rows `leading` and the `column`; it is stored at the same place."""

    block: SBlock
    sums: Buffer

    @staticmethod
    def of(last: SBlock, sums: Buffer) -> Epilogue | None:
        """Return the block `last` as such; None where it is not over the product's rows and columns."""
        found = Epilogue(last, sums)
        loads = [load for load in tir.loads(last.body.value) if load.source.same_as(sums)]
        row = tir.flatten(found.axes[:-1], found.sizes[:-1])
        at_place = all(
            tir.same(tir.simplify(load.indices[0] - row), tir.index_const(0))
            and tir.same_var(load.indices[1], found.axes[-1])
            for load in loads
        )
        return found if loads and at_place and found._is_plain(last.body.buffer, last.body.indices) else None

    @property
    def axes(self) -> list[Var]:
        """Return the variables of the leading axes and the column."""
        return [iv.var for iv in self.block.iter_vars]

    @property
    def sizes(self) -> list[Expr]:
        """Return their extents."""
        return [iv.dom.extent for iv in self.block.iter_vars]

    @property
    def rows(self) -> Expr:
        """Return their number."""
        return tir.size(tir.product(self.sizes[:-1]))

    def _is_plain(self, source: Buffer, indices: Sequence[Expr]) -> bool:
        """Whether the element is at the place of the result's in a buffer of the same sizes."""
        return (
            len(source.shape) == len(self.sizes)
            and all(map(tir.same_size, source.shape, self.sizes))
            and all(map(tir.same_var, indices, self.axes))
        )

    def statement(self, row: Expr, column: Expr, value: Expr) -> Stmt:
        """Return the store of the result at `row` and `column`, whose sum is `value`."""
        body = self.block.body
        axes = dict(zip(self.axes, [*tir.unflatten(row, self.sizes[:-1]), column], strict=True))
        places = rows_of(self.sizes, row, column)

        def read(load: TensorLoad) -> Expr:
            if load.source.same_as(self.sums):
                return value
            return tirx.BufferLoad(load.source, places) if self._is_plain(load.source, load.indices) else load

        found = body.value
        for source in {load.source for load in tir.loads(found)}:
            found = tir.replace_loads(found, source, read)
        return tirx.BufferStore(body.buffer, tir.substitute(found, axes), places)


def rows_of(sizes: Sequence[Expr], row: Expr, last: Expr) -> list[Expr]:
    """Return the indices of a row of all leading axes: without gaps in the buffer the last may run past its end."""
    return [*[tir.index_const(0)] * (len(sizes) - 2), row, last]
