"""Tile registers (AMX): which instructions on them some template has code for, and how rows are divided among them."""

from __future__ import annotations

from collections.abc import Iterator

from relaxc.schedules.dots import Dot, bits_of
from relaxc.schedules.hardware import Cpu

__all__ = ["MATRIX", "MOST_SUMS", "REGISTERS", "fits", "instructions", "interleaved", "rows_of"]

MATRIX = "matrix"
"""The parameter of a plan for tile registers: how many of them the rows of a register tile take. Plans without it are
of vectors. Each vector of a panel takes one, too, so that the sums are in `matrix * vectors`."""

REGISTERS = 8

dtypes = (("bfloat16", "bfloat16"), ("uint8", "int8"), ("int8", "int8"))
"""Operands whose instructions some machine has run with these templates; of float16 none has."""

MOST_SUMS = 4
"""Registers of sums: two by two load the fewest operands, and hide the latency."""


def instructions(operands: tuple[str, ...], accumulate: str, cpu: Cpu) -> Iterator[Dot]:
    """Yield the instructions on tile registers for these operands whose columns are those of a vector of sums."""
    wanted = (operands, accumulate, cpu.lanes(accumulate))
    if operands in dtypes:
        yield from (dot for dot in cpu.dots if dot.in_tiles and (dot.operands, dot.accumulate, dot.n) == wanted)


def interleaved(dot: Dot) -> int:
    """Return how many elements of k lie beside each other in a packed operand: those of 32 bits."""
    return 32 // bits_of(dot.operands[1])


def rows_of(rows: int, each: int, registers: int) -> tuple[int, ...]:
    """Return how many of `rows` each register has, which are filled with `each` one after the other; at least one."""
    return tuple(max(1, min(each, rows - i * each)) for i in range(registers))


def fits(down: int, across: int) -> bool:
    """Return whether the sums, the left operand's registers and one of the right operand are registers."""
    sums = down * across
    return sums <= MOST_SUMS and sums + down + 1 <= REGISTERS
