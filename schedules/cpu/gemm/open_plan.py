"""How a product whose rows are known at the call alone is divided: tiles of several heights; the default and space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from relaxc.schedules.cpu.common.dot_product import STEPS
from relaxc.schedules.cpu.common.register_tile import divisors, fits, step_cycles, unrolled_steps
from relaxc.schedules.cpu.gemm.packed_plan import Layout, dot_of
from relaxc.schedules.dots import bits_of
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Matmul

__all__ = ["PARAMETERS", "Tile", "default", "estimate", "layout_of", "panel_bytes", "points", "refusal", "tiles_of"]

PARAMETERS = ("block", "vectors", "rows", "span", "panels", "unroll")
"""The layout is `block` lanes of a vector and `vectors` of a panel; `rows` of the highest register tile; `span` rows at
most and `panels` in a task; `unroll` steps of k."""

ASSUMED_ROWS = (1, 2, 4, 8, 16, 50, 128, 512)
"""What the default is to be good at: calls of one row and a few, and of whole batches or sequences."""

_MOST_ROWS, _MOST_VECTORS, _MOST_PANELS = 14, 4, 8

_LOWER = 0.85
"""The next lower tile in the one before: with all of them no number of rows computes many that are not there."""

_UNPACKING = 3
"""Instructions that make a vector of floats of codes; they start beside the multiply-adds, on one unit more."""

_MOST_SPAN = 4096


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile of `rows`, of as many panels `abreast` as hide the latency; `cycles` are those of one panel."""

    rows: int
    abreast: int
    cycles: int


def layout_of(op: Matmul, parameters: Mapping[str, int]) -> Layout:
    """Return the layout of the weights that a plan's parameters describe."""
    return Layout(op, 0, parameters["block"], parameters["vectors"], parameters.get(STEPS, 1))


def panel_bytes(layout: Layout) -> float:
    """Return the bytes of a panel, which may be of fewer bits an element than A."""
    return layout.op.k * layout.width * bits_of(layout.op.operands[1]) / 8


def tiles_of(op: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> list[Tile]:
    """Return the tiles that the kernel has for `rows` and less, the highest first; the last has one row."""
    heights = [parameters["rows"]]
    while heights[-1] > 1:
        heights.append(min(heights[-1] - 1, int(heights[-1] * _LOWER)))
    return [_tile(op, rows, parameters, cpu) for rows in heights]


def _tile(op: Matmul, rows: int, parameters: Mapping[str, int], cpu: Cpu) -> Tile:
    layout = layout_of(op, parameters)
    dot, vectors = layout.instruction(cpu), layout.vectors
    wanted = cpu.fma_in_flight if dot is None else dot.in_flight
    abreast = [
        each
        for each in divisors(parameters["panels"], _MOST_PANELS)
        if each == 1 or fits_flat(rows, vectors * each, cpu)
    ]
    chosen = next((each for each in abreast if rows * vectors * each >= wanted), abreast[-1])
    arriving = panel_bytes(layout) / layout.steps / cpu.costs.l2_bytes_per_cycle
    unpacking = _UNPACKING if bits_of(op.operands[1]) < bits_of(op.operands[0]) else 0
    issued = (rows + unpacking) * vectors / (cpu.fma_per_cycle + 1)
    step = max(step_cycles(rows, vectors * chosen, cpu, dot) / chosen, issued, arriving) + 0.5 / parameters["unroll"]
    return Tile(rows, chosen, round(layout.steps * step + 2 * rows * vectors + cpu.costs.tile))


def fits_flat(rows: int, vectors: int, cpu: Cpu) -> bool:
    """Return whether the sums, a broadcast and a vector of weights stay in registers."""
    return rows * vectors + 2 <= cpu.vector_registers


def default(op: Matmul, cpu: Cpu) -> dict[str, int]:
    """Return the point of the least estimate over the sizes that are assumed."""
    return min(points(op, cpu), key=lambda point: estimate(op, point, cpu))


def points(op: Matmul, cpu: Cpu) -> Iterator[dict[str, int]]:
    """Return every point that is worth a trial."""
    dot = dot_of(op, cpu)
    steps = {} if dot is None else {STEPS: dot.k}
    lanes = cpu.lanes(op.sum_bits)
    for vectors in range(_MOST_VECTORS, 0, -1):
        rows = max(rows for rows in range(1, _MOST_ROWS + 1) if fits(rows, vectors, cpu))
        layout = Layout(op, 0, lanes, vectors, 1 if dot is None else dot.k)
        for panels in divisors(layout.panels, _MOST_PANELS):
            point = {"block": lanes, "vectors": vectors, "rows": rows, "panels": panels}
            yield {**point, "span": _span(layout, rows, cpu), "unroll": unrolled_steps(layout.steps), **steps}


def _span(layout: Layout, rows: int, cpu: Cpu) -> int:
    """The rows that stay in L2 beside two panels; more where those do not fit, so that panels are read less often."""
    fitting = (cpu.l2_bytes * 3 // 4 - 2 * panel_bytes(layout)) // layout.row_bytes
    if fitting < rows:
        fitting = cpu.l3_bytes * 3 // 4 // cpu.cores // layout.row_bytes
    return max(rows, min(int(fitting), _MOST_SPAN))


def refusal(op: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why these parameters are no point of the space, in one phrase; empty if they are one."""
    if set(parameters) - {STEPS} != set(PARAMETERS):
        return f"the template's parameters are {', '.join(PARAMETERS)}"
    if min(parameters.values()) < 1:
        return "a parameter is less than 1"
    layout, dot = layout_of(op, parameters), dot_of(op, cpu)
    rows, vectors, unroll = parameters["rows"], parameters["vectors"], parameters["unroll"]
    wrong = {
        "no instruction takes so many steps": layout.dot not in (1, 1 if dot is None else dot.k),
        "the block is not a vector": layout.lanes != cpu.lanes(op.sum_bits),
        "the register tile does not fit": not fits(rows, vectors, cpu) or rows > _MOST_ROWS,
        "a task has no tile": not rows <= parameters["span"] <= _MOST_SPAN,
        "panels do not divide the columns": bool(layout.panels % parameters["panels"])
        or parameters["panels"] > _MOST_PANELS,
        "unroll does not divide the depth": bool(layout.steps % unroll) or unroll > 8,
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def estimate(op: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Return the geometric mean of the busiest core's cycles over the sizes that are assumed."""
    tiles = tiles_of(op, parameters, cpu)
    return geometric_mean(_cycles(rows, op, parameters, tiles, cpu) for rows in ASSUMED_ROWS)


def _cycles(rows: int, op: Matmul, parameters: Mapping[str, int], tiles: list[Tile], cpu: Cpu) -> float:
    layout, panels = layout_of(op, parameters), parameters["panels"]
    tile = min((tile for tile in tiles if tile.rows <= rows), key=lambda tile: -(-rows // tile.rows) * tile.cycles)
    down = -(-rows // tile.rows)
    in_task = min(down, max(1, parameters["span"] // tile.rows))
    rounds = -(-(-(-down // in_task) * (layout.panels // panels)) // cpu.cores)
    compute = rounds * panels * in_task * tile.cycles
    arriving = layout.panels * panel_bytes(layout) / cpu.cores / cpu.memory_bytes_per_cycle
    held = in_task * tile.rows * layout.row_bytes
    again = rounds * panels * held / cpu.l3_bytes_per_cycle if held > cpu.l2_bytes else 0.0
    return max(compute, arriving) + again
