"""How a window that slides over an image is divided: register tile and strips of rows; the default and the space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from relaxc.schedules.cpu.common.register_tile import divisors
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Depthwise2d, Pool2d

__all__ = [
    "AS_NEEDED",
    "MOST_TAPS",
    "PARAMETERS",
    "STAGED",
    "Window",
    "default",
    "estimate",
    "points",
    "refusal",
    "tile_cycles",
]

PARAMETERS = ("block", "columns", "strips", "staged")
"""The layout is `block` channels in the innermost axis, 0 where all of them are. `columns` of the register tile,
`strips` of rows; `staged` is one of the next three."""

UNSTAGED, STAGED, AS_NEEDED = 0, 1, 2
"""The epilogue from the registers, or as a loop over the tile in memory; or that where it calls functions, which is the
default: what is fused is not known when plans are made."""

MOST_TAPS = 8
"""Window columns up to which a row of the window is unrolled."""

_MOST_STRIPS = 16

_MANY = 128
"""Columns that stand for an unknown number."""


@dataclass(frozen=True, slots=True)
class Window:
    """The block `name`: its result is `[n, c, height, columns, v]`, or `[n, height, columns, c]` if not `blocked`.

    Its accumulators are in vectors of `lanes`. `weighted`: there is a weight a tap, in a register.
    """

    name: str
    op: Depthwise2d | Pool2d
    lanes: int
    blocked: bool
    weighted: bool

    @property
    def height(self) -> int:
        """Rows of the result; 0 where they are not known."""
        return self.op.result[0]

    @property
    def columns(self) -> int:
        """Columns of the result; 0 where they are not known."""
        return self.op.result[1]

    def most_columns(self, cpu: Cpu) -> int:
        """Return the accumulators that fit beside a row of weights and two inputs; at most twice what hides latency."""
        taps = self.op.kernel[1]
        weights = (taps if taps <= MOST_TAPS else 1) if self.weighted else 0
        return max(1, min(cpu.vector_registers - weights - 2, 2 * cpu.fma_in_flight))


def default(window: Window, cpu: Cpu) -> dict[str, int]:
    """Return the fewest even tiles, and as many strips as there are cores, where rows can be divided among them."""
    divided = window.height > 0 and window.height % cpu.cores == 0 and (window.op.batch or 1) == 1
    strips = cpu.cores if divided else 1
    columns = _even_tile(window.columns or _MANY, window.most_columns(cpu))
    return {"block": _block(window), "columns": columns, "strips": strips, "staged": AS_NEEDED}


def _block(window: Window) -> int:
    return window.lanes if window.blocked else 0


def _even_tile(extent: int, most: int) -> int:
    """The fewest tiles, then the smallest tile: 28 in tiles of at most 16 is two of 14."""
    if extent <= most:
        return extent
    exact = [size for size in divisors(extent, most) if 2 * size > most]
    return exact[-1] if exact else -(-extent // -(-extent // most))


def refusal(window: Window, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why these parameters are no point of the space, in one phrase; empty if they are one."""
    if set(parameters) != set(PARAMETERS):
        return f"the template's parameters are {', '.join(PARAMETERS)}"
    columns, strips = parameters["columns"], parameters["strips"]
    wrong = {
        "the blocks of channels are not as wide as a vector": parameters["block"] != _block(window),
        "its channels do not fill vectors": bool(window.op.channels % window.lanes),
        "columns do not fit the registers or the image": not 1 <= columns <= _most(window, cpu),
        "strips do not divide the rows": strips < 1 or bool(window.height % strips if window.height else strips > 1),
        "staged is 0, 1 or 2": parameters["staged"] not in (UNSTAGED, STAGED, AS_NEEDED),
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def _most(window: Window, cpu: Cpu) -> int:
    return min(window.columns or _MANY, window.most_columns(cpu))


def points(window: Window, cpu: Cpu) -> Iterator[dict[str, int]]:
    """Return every point that is worth a trial: of tiles of equal number the smallest, each with every epilogue."""
    first = default(window, cpu)
    useful = {-(-(window.columns or _MANY) // size): size for size in range(_most(window, cpu), 0, -1)}
    for columns in sorted({*useful.values(), first["columns"]}):
        for strips in sorted({*divisors(window.height or 1, _MOST_STRIPS), first["strips"]}):
            for staged in (AS_NEEDED, UNSTAGED, STAGED):
                yield {**first, "columns": columns, "strips": strips, "staged": staged}


def estimate(window: Window, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Return the cycles of the busiest core: its taps or the loads of them, and the beginning and end of each tile."""
    columns, strips, op = parameters["columns"], parameters["strips"], window.op
    height, width = op.assumed().result
    tasks = strips * (op.batch or 1) * -(-op.channels // window.lanes) * (height // strips)
    return -(-tasks // cpu.cores) * -(-width // columns) * tile_cycles(window, columns, cpu)


def tile_cycles(window: Window, columns: int, cpu: Cpu) -> float:
    """Return the cycles of a tile."""
    op = window.op
    taps = prod(op.kernel) * max(columns / cpu.fma_per_cycle, cpu.fma_latency)
    loads = op.kernel[0] * ((columns - 1) * op.strides[1] + op.kernel[1]) / cpu.loads_per_cycle
    return max(taps, loads) + columns + cpu.costs.tile
