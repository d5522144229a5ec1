"""What the packed templates share: a register tile of a contraction whose layouts the graph passes chose.

The PrimFunc is `[pad] → contraction → crop → epilogue`, with the accumulator over whole tiles (`crop` drops what is
past the last row), so that no tile has a tail. The tile stays in vector registers over the whole reduction, and the
epilogue reads it from there.
"""

from __future__ import annotations

from tvm import tirx

from relaxc.schedules.dots import Dot
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import analysis
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import Expr, PrimFunc, SBlock, TirSchedule, Var
from relaxc.schedules.template import Declined

__all__ = [
    "LOOPED",
    "UNROLLED_COLUMNS",
    "blocks_around",
    "divisors",
    "fits",
    "flatten_rows",
    "round_up",
    "step_cycles",
    "unrolled_steps",
]

UNROLLED_COLUMNS = 112
"""Columns of a small image whose tiles may all be unrolled: as many as of eight tiles with 32 registers."""

LOOPED = "looped"
"""The parameter, 1, of a plan whose tiles of a small image are a loop all the same. Plans without it, as those of all
records from before, unroll them: no faster where addresses are linear, and up to four times as long to compile."""

UNROLLED = 4
"""Reduction steps without a branch between them: enough to hide the loop, few enough to stay in the µop cache."""


def divisors(extent: int, most: int) -> tuple[int, ...]:
    """Return the divisors of `extent` up to `most`, ascending; 1 is always one."""
    return tuple(d for d in range(1, min(extent, most) + 1) if extent % d == 0)


def round_up(extent: int, multiple: int) -> int:
    """Return the least multiple that is not less than `extent`."""
    return -(-extent // multiple) * multiple


def fits(rows: int, vectors: int, cpu: Cpu) -> bool:
    """Return whether the accumulators, one row of operand vectors and one broadcast stay in registers."""
    return rows * vectors + vectors + 1 <= cpu.vector_registers


def step_cycles(rows: int, vectors: int, cpu: Cpu, dot: Dot | None = None) -> float:
    """Return the cycles of a step of the reduction over a tile: bound by arithmetic, loads or latency.

    It issues rows * vectors multiply-adds, and beside them the broadcasts of the rows and the loads of the vectors,
    which wait for nothing but registers. With `dot` these are in the place of the multiply-adds.
    """
    rate, latency = (cpu.fma_per_cycle, cpu.fma_latency) if dot is None else (dot.throughput, dot.latency)
    return max(rows * vectors / rate, (rows + vectors) / cpu.loads_per_cycle, latency)


def unrolled_steps(extent: int) -> int:
    """Return the steps of the innermost reduction loop that are unrolled: a divisor of its extent."""
    return divisors(extent, UNROLLED)[-1]


def blocks_around(func: PrimFunc, name: str) -> tuple[list[SBlock], SBlock, list[SBlock]] | Declined:
    """Return the blocks before the one called `name`, that block, and those after it, which must be elementwise."""
    blocks = [realize.block for realize in block_realizes(func)]
    at = [i for i, block in enumerate(blocks) if block.name_hint == name]
    if len(at) != 1:
        return Declined(f"it has no single block {name}")
    before, after = blocks[: at[0]], blocks[at[0] + 1 :]
    if not after or not all(analysis.is_injective(block) for block in after):
        return Declined("its epilogue is not elementwise")
    if not all(analysis.is_injective(block) for block in before):
        return Declined("its prologue is not elementwise")
    return before, blocks[at[0]], after


def flatten_rows(sch: TirSchedule, name: str, block: SBlock) -> None:
    """Make the axes of the epilogue's rows one."""
    sizes = [iv.dom.extent for iv in block.iter_vars]
    if len(sizes) == 2:
        return

    def flat(*axes: Var) -> tuple[Expr, Expr]:
        row = axes[0]
        for axis, size in zip(axes[1:-1], sizes[1:-1], strict=True):
            row = row * size + axis
        return row, axes[-1]

    sch.transform_block_layout(name, tirx.IndexMap.from_func(flat, ndim=len(sizes)))
