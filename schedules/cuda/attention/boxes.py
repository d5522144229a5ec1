"""Boxes of keys and values for the copy engine: by two axes where they have them, which takes an SM less time.

An SM that only copies boxes of 64 rows of 128 bytes out of memory gets 50 bytes a nanosecond by maps of two axes and 40
by maps of three or four (an H100, 64 SMs at a time, 2026-11-26).
"""

from __future__ import annotations

from dataclasses import dataclass

from relaxc.schedules.cuda.attention.form import Attention
from relaxc.schedules.cuda.attention.strides import Heads
from relaxc.schedules.cuda.attention.text import tensor_map
from relaxc.schedules.cuda.common.kernel import TensorMap

__all__ = ["Boxes", "boxes_of"]

_ATOM = 64
"""Columns of a box."""


@dataclass(frozen=True)
class Boxes:
    """The map of an operand, and the text of the call that brings a box by it."""

    map: TensorMap
    call: str

    def text(self, name: str) -> str:
        """Return the function that brings one box: from a column and a row of a head, of a batch or of a page."""
        parameters = "uint32_t to, const TensorMap* map, uint32_t bar, int column, int row, int head, int batch"
        return f"DEV void {name}({parameters}) {{ {self.call}; }}\n"


def boxes_of(attention: Attention, at: Heads, heads: int, rows: int) -> Boxes:
    """Return the boxes of `rows` rows of keys or of values, which `heads` heads have."""
    flat = _flat(attention, at, heads, rows)
    if flat is not None:
        return flat
    return Boxes(
        tensor_map(attention, at, attention.keys, heads, rows), "load_image(to, map, bar, column, row, head, batch)"
    )


def _flat(attention: Attention, at: Heads, heads: int, rows: int) -> Boxes | None:
    """Boxes of a map whose rows are those of all heads and batches, where none reaches from one into another."""
    size, count = (at.pages.rows, at.pages.count) if at.pages else (attention.keys, attention.batch)
    heads += at.head_at
    if at.rows <= 0 or size % rows or (count > 1 and at.batches % at.rows):
        return None
    if heads == 1 or at.heads % at.rows == 0:
        across, down, width = 0, at.heads // at.rows if heads > 1 else 0, attention.head
    elif at.heads * heads <= at.rows and attention.head % _ATOM == 0:
        across, down, width = at.heads, 0, at.heads * (heads - 1) + attention.head
    else:
        return None
    beyond = at.batches // at.rows if count > 1 else 0
    if at.pages and beyond < (heads - 1) * down + size:
        return None  # a page that is not there would not lie outside, and bring zeros
    height = at.row_at + size + (heads - 1) * down + (count - 1) * beyond
    call = f"load_rows(to, map, bar, column + head * {across}, row + head * {down} + batch * {beyond})"
    return Boxes(TensorMap(at.buffer, (width, height), rows, (at.rows,)), call)
