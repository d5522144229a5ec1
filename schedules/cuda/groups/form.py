"""Reductions over groups of channels of NHWC images, read from a PrimFunc and written as CUDA text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from schedules.cuda.common.expression import Unsupported
from schedules.cuda.rows import form as rows
from schedules.ir import tir
from schedules.template import Declined

__all__ = ["Groups", "match"]


@dataclass(frozen=True)
class Groups:
    """`out[n, p, c] = result(x[n, p, c], sums[n, c // width, :], n, p, c)`; `text` is as that of rows."""

    x: Any
    out: Any
    images: int
    pixels: int
    channels: int
    width: int
    sums: int
    text: str
    operands: tuple[Any, ...]


def match(func: Any) -> Groups | Declined:
    """Return the groups that `func` reduces and writes, or why it does none that the kernel takes."""
    return rows.matched(func, lambda blocks: _Reader(func, blocks).read())


class _Reader(rows.Reader):
    """Reads the blocks of one PrimFunc: sums of groups become numbers, all else is inlined."""

    def read(self) -> Any:
        """Return the whole function. Raise Unsupported."""
        if len(self.shape) != 4:
            raise Unsupported("its result is no image")
        images, height, across, channels = self.shape
        groups = {tuple(int(dim) for dim in block.body.buffer.shape) for block in self.reductions}
        if len(groups) != 1 or len(found := groups.pop()) != 2 or found[0] != images or channels % found[1]:
            raise Unsupported("its sums are not of groups of channels of images")
        self.width = channels // found[1]
        if self.width % 2 or channels % 8:
            raise Unsupported("its groups are not of pairs of channels, or its channels in no multiple of 8")
        text = self._text()
        return Groups(
            self.x, self.out, images, height * across, channels, self.width, len(self.sums), text, tuple(self.operands)
        )

    def _group(self) -> Any:
        return tirx.floordiv(self.column, self.width)

    def _places(self, block: Any) -> dict[Any, Any]:
        reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == 2]
        kept = [iv for iv in block.iter_vars if int(iv.iter_type) != 2]
        sizes = [[tir.as_int(iv.dom.extent) for iv in each] for each in (kept, reduced)]
        wanted = [[self.shape[0], self.shape[3] // self.width], [*self.shape[1:3], self.width]]
        if sizes != wanted:
            raise Unsupported("it does not reduce groups of channels")
        if not all(map(tir.same_var, block.body.indices, [iv.var for iv in kept])):
            raise Unsupported("its sums are stored elsewhere than at their groups")
        (n, g), (y, x, c) = ([iv.var for iv in each] for each in (kept, reduced))
        first = self._group() * self.width
        return {n: self.axes[0], g: self._group(), y: self.axes[1], x: self.axes[2], c: self.column - first}

    def _of_sums(self) -> list[Any]:
        sizes = (self.shape[0], self.shape[3] // self.width)
        return [at for at, size in zip((self.axes[0], self._group()), sizes, strict=True) if size != 1]
