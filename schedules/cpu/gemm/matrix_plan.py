"""How a matrix product with packed weights is divided for tile registers (AMX): the space, and its best estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from relaxc.schedules.cpu.common.dot_product import STEPS
from relaxc.schedules.cpu.common.register_tile import divisors
from relaxc.schedules.cpu.common.tile_registers import MATRIX, MOST_SUMS, fits, instructions, interleaved
from relaxc.schedules.cpu.gemm.packed_plan import MOST_TILES, PARAMETERS, Layout, padded_rows
from relaxc.schedules.dots import Dot
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Matmul

__all__ = ["default", "estimate", "instruction_of", "points", "refusal"]


def instruction_of(op: Matmul, cpu: Cpu) -> Dot | None:
    """Return the instruction on tile registers that the product is made of; None without one.

    Its columns are those of a vector of sums, and whole steps of its k are the depth.
    """
    return next((dot for dot in instructions(op.operands, op.accumulate, cpu) if op.k % dot.k == 0), None)


def default(op: Matmul, cpu: Cpu) -> dict[str, int] | None:
    """Return the point of the least estimate; None where the CPU has no such instruction."""
    return min(points(op, cpu), key=lambda point: estimate(op, point, cpu), default=None)


def refusal(op: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why these parameters are no point of the space, in one phrase; empty if they are one."""
    if set(parameters) != {*PARAMETERS, STEPS, MATRIX}:
        return f"the template's parameters are {', '.join((*PARAMETERS, STEPS, MATRIX))}"
    if min(parameters.values()) < 1:
        return "a parameter is less than 1"
    dot, layout = instruction_of(op, cpu), Layout.of(op, parameters)
    if dot is None:
        return "the target has no tile instruction for the product"
    padded, rows, tiles, matrix = (parameters[name] for name in ("padded", "rows", "tiles", MATRIX))
    wrong = {
        "the instruction takes another number of steps": layout.dot != interleaved(dot),
        "the block is not a row of a tile register": layout.lanes != dot.n,
        "the register tile does not fit": not fits(matrix, layout.vectors) or not matrix <= rows <= matrix * dot.m,
        "some of its tile registers have no rows": (matrix - 1) * -(-rows // matrix) >= rows,
        "padded is not the rows in whole tiles": padded < op.m or bool(padded % rows) or padded > 2 * op.m + dot.m,
        "tiles do not divide the rows": bool(padded // rows % tiles) or tiles > MOST_TILES,
        "panels do not divide the columns": bool(layout.panels % parameters["panels"]),
        "tile registers take the whole depth": parameters["depth"] != layout.steps or parameters["unroll"] != 1,
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def points(op: Matmul, cpu: Cpu) -> Iterator[dict[str, int]]:
    """Return every point that is worth a trial; none where the CPU has no such instruction."""
    dot = instruction_of(op, cpu)
    if dot is None:
        return
    for matrix in (2, 1):
        tiles = -(-op.m // (matrix * dot.m))
        rows = -(-op.m // tiles)
        for vectors in (vectors for vectors in range(MOST_SUMS, 0, -1) if fits(matrix, vectors) and rows >= matrix):
            layout = Layout(op, padded_rows(op.m, rows), dot.n, vectors, interleaved(dot))
            blocks = divisors(layout.rows // rows, MOST_TILES)
            fitting = [tiles for tiles in blocks if _stays_in_l2(layout, rows * tiles, cpu)]
            for tiles in dict.fromkeys((blocks[-1], *fitting[-1:])):
                for panels in divisors(layout.panels, 2):
                    yield {
                        "block": layout.lanes,
                        "vectors": vectors,
                        "padded": layout.rows,
                        STEPS: layout.dot,
                        "rows": rows,
                        "tiles": tiles,
                        "panels": panels,
                        "depth": layout.steps,
                        "unroll": 1,
                        MATRIX: matrix,
                    }


def _stays_in_l2(layout: Layout, rows: int, cpu: Cpu) -> bool:
    """Whether so many rows of the left operand do, while panels pass."""
    return rows * layout.row_bytes + 2 * layout.panel_bytes <= cpu.l2_bytes * 3 // 4


def estimate(op: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Return the cycles of the busiest core: of each task its instructions with operands from L2, or those from L3.

    Every step reads its rows from L2, and its part of the panel, too, where a tile's rows and the panel leave L1.
    """
    dot, layout = instruction_of(op, cpu), Layout.of(op, parameters)
    assert dot is not None, op
    rows, tiles, panels, matrix = (parameters[name] for name in ("rows", "tiles", "panels", MATRIX))
    stays = rows * layout.row_bytes + layout.panel_bytes <= cpu.l1_bytes
    step_bytes = dot.k * op.element_bytes * (rows + (0 if stays else layout.width))
    loads = (rows + dot.m * layout.vectors) / cpu.loads_per_cycle
    arithmetic = max(matrix * layout.vectors / dot.throughput, dot.latency)
    step = max(arithmetic, loads, step_bytes / cpu.costs.tile_bytes_per_cycle)
    tile = op.k // dot.k * step + 2 * rows * layout.vectors + cpu.costs.tile
    again = 0 if _stays_in_l2(layout, rows * tiles, cpu) else rows * tiles * layout.row_bytes
    task = panels * max(tiles * tile, (layout.panel_bytes + again) / cpu.l3_bytes_per_cycle)
    rounds = -(-(layout.rows // rows // tiles) * -(-layout.panels // panels) // cpu.cores)
    arriving = layout.panels * layout.panel_bytes / cpu.cores / cpu.memory_bytes_per_cycle
    return max(rounds * task, arriving)
