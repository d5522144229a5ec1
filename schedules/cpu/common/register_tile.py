"""What the packed templates share: a register tile of a contraction whose layouts the graph passes chose.

The PrimFunc is `[pad] → contraction → crop → epilogue`, with the accumulator over whole tiles (`crop` drops what is
past the last row), so that no tile has a tail. The tile stays in vector registers over the whole reduction, and the
epilogue reads it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schedules.hardware import Cpu
from schedules.ir import analysis, moves, tir
from schedules.template import Declined

__all__ = [
    "UNROLLED_COLUMNS",
    "best_vectors",
    "blocks_around",
    "divisors",
    "inline_around",
    "prologue_names",
    "tile_of",
    "unrolled_steps",
]

UNROLLED_COLUMNS = 112
"""Columns of a small image whose tiles may all be unrolled: as many as of eight tiles with 32 registers."""

UNROLLED = 4
"""Reduction steps without a branch between them: enough to hide the loop, few enough to stay in the µop cache."""


def divisors(extent: int, most: int) -> tuple[int, ...]:
    """The divisors of `extent` up to `most`, ascending; 1 is always one."""
    return tuple(d for d in range(1, min(extent, most) + 1) if extent % d == 0)


def tile_of(rows: int, most: int) -> int:
    """The rows of the register tile that an accumulator of `rows` padded rows was made for."""
    return divisors(rows, most)[-1]


def best_vectors(rows: int, candidates: Sequence[int], cpu: Cpu) -> int:
    """Vectors a row of the register tile: the most accumulators that leave registers for one row of operands.

    `rows * v` accumulators, `v` operand vectors and one broadcast must fit the registers.
    """
    fitting = [v for v in candidates if rows * v + v + 1 <= cpu.vector_registers]
    return max(fitting, default=1)


def unrolled_steps(extent: int) -> int:
    """Steps of the innermost reduction loop that are unrolled: a divisor of its extent."""
    return divisors(extent, UNROLLED)[-1]


def blocks_around(func: Any, name: str) -> tuple[list[Any], Any, list[Any]] | Declined:
    """The blocks before the one called `name`, that block, and those after it, which must be elementwise."""
    blocks = [realize.block for realize in tir.block_realizes(func)]
    at = [i for i, block in enumerate(blocks) if block.name_hint == name]
    if len(at) != 1:
        return Declined(f"it has no single block {name}")
    before, after = blocks[: at[0]], blocks[at[0] + 1 :]
    if not after or not all(analysis.is_injective(block) for block in after):
        return Declined("its epilogue is not elementwise")
    if not all(analysis.is_injective(block) for block in before):
        return Declined("its prologue is not elementwise")
    return before, blocks[at[0]], after


def inline_around(sch: Any, keep: Sequence[str]) -> None:
    """Elementwise stages go into their readers, but for those in `keep`."""
    moves.inline_producers(sch, keep=lambda block: block.name_hint in keep)


def prologue_names(blocks: Sequence[Any]) -> list[str]:
    """The prologue's stages that pad: they are computed for each task, the others inside their readers."""
    return [block.name_hint for block in blocks if block.name_hint == "pad"]
