"""How a matrix product with packed weights is divided: panels, register tile and tasks; the default and the space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from relaxc.schedules.cpu.common.dot_product import STEPS, instruction, steps_of
from relaxc.schedules.cpu.common.register_tile import divisors, fits, round_up, step_cycles, unrolled_steps
from relaxc.schedules.dots import Dot
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Matmul

__all__ = ["MOST_TILES", "PARAMETERS", "Layout", "default", "dot_of", "estimate", "padded_rows", "points", "refusal"]

PARAMETERS = ("block", "vectors", "padded", "rows", "tiles", "panels", "depth", "unroll")
"""The layout is `block` lanes of a vector, `vectors` of a panel and `padded` rows; `rows` of the register tile; `tiles`
of rows in a task (1 where the depth is split); `panels` in a task; `depth` of a part; `unroll` steps of k. With `dot`,
which is of the layout too, so many elements of k are one step: `depth` counts these."""

_FEW_ROWS = 4
"""Rows under which the product is bound by reading the weights, and the panels are chosen to spread over the cores."""

_PANELS_PER_CORE = 4

_MOST_ROWS, _MOST_VECTORS = 14, 4

MOST_TILES = 512
"""Tiles of rows in a task: more make no task better, and the space larger."""

_LEAST_DEPTH = 128
"""Steps of the depth under which the sums go to memory and back too often for what is added to them."""

_WORSE = 0.6
"""Register tiles with less than this part of the best one's estimated speed are not searched."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes that follow from an operator, the vectors of a panel and the padded rows."""

    op: Matmul
    rows: int
    lanes: int
    vectors: int
    dot: int = 1

    @property
    def steps(self) -> int:
        """Steps of the depth, each of `dot` elements."""
        return self.op.k // self.dot

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        """Panels of weights, the last with zeros past the columns."""
        return -(-self.op.n // self.width)

    @property
    def row_bytes(self) -> int:
        """Of a row of A."""
        return self.op.element_bytes * self.op.k

    @property
    def panel_bytes(self) -> int:
        """Of a panel of B."""
        return self.op.element_bytes * self.op.k * self.width

    def instruction(self, cpu: Cpu) -> Dot | None:
        """Return the instruction that a step is; None where that is a multiply-add, or `cpu` does not have it."""
        return dot_of(self.op, cpu) if self.dot > 1 else None

    @staticmethod
    def of(op: Matmul, parameters: Mapping[str, int]) -> Layout:
        """Return the layout that a plan's parameters describe."""
        return Layout(op, parameters["padded"], parameters["block"], parameters["vectors"], steps_of(parameters))


def dot_of(op: Matmul, cpu: Cpu) -> Dot | None:
    """Return the instruction that the product is made of; None if it is multiply-adds of widened operands."""
    return instruction(op.operands, op.accumulate, op.k, cpu)


def default(op: Matmul, cpu: Cpu) -> dict[str, int]:
    """Return the parameters that the hardware row gives.

    A panel is read from start to end for each tile of rows; the tile's rows and the panel's vectors are chosen
    together, so that the accumulators fill the registers and as little as possible is computed past the ends. For a few
    rows each core reads its panels as one stream, at the speed of the memory.
    """
    tile, vectors = (op.m, _vectors_of_few(op, cpu)) if op.m < _FEW_ROWS else _tile(op, cpu)
    padded = padded_rows(op.m, tile)
    most = min(_MOST_ROWS, (cpu.vector_registers - 1 - vectors) // vectors)
    layout = Layout(op, padded, cpu.lanes(op.sum_bits), vectors, _steps(op, cpu))
    return {**_of_layout(layout), **_blocking(layout, divisors(padded, most)[-1], cpu)}


def _of_layout(layout: Layout) -> dict[str, int]:
    dot = {STEPS: layout.dot} if layout.dot > 1 else {}
    return {"block": layout.lanes, "vectors": layout.vectors, "padded": layout.rows, **dot}


def _steps(op: Matmul, cpu: Cpu) -> int:
    dot = dot_of(op, cpu)
    return 1 if dot is None else dot.k


def _vectors_of_few(op: Matmul, cpu: Cpu) -> int:
    """Vectors of a panel for a few rows: enough to hide the latency of a multiply-add, fewer where panels are few."""
    fitting = (cpu.vector_registers - 1) // (op.m + 1)
    spread = op.n // (cpu.lanes(op.sum_bits) * cpu.cores * _PANELS_PER_CORE)
    return max(1, min(_MOST_VECTORS, fitting, spread))


def _tiles(op: Matmul, cpu: Cpu) -> Iterator[tuple[float, int, int]]:
    """Every register tile with the estimate of its useful multiply-adds in a cycle: (score, rows, vectors)."""
    lanes, dot = cpu.lanes(op.sum_bits), dot_of(op, cpu)
    for vectors in range(_MOST_VECTORS, 0, -1):
        for tile in range(min(op.m, _MOST_ROWS), 0, -1):
            if fits(tile, vectors, cpu):
                useful = op.n / round_up(op.n, vectors * lanes) * op.m / round_up(op.m, tile)
                yield useful * tile * vectors / (step_cycles(tile, vectors, cpu, dot) + 1), tile, vectors


def _tile(op: Matmul, cpu: Cpu) -> tuple[int, int]:
    """Rows and vectors of the register tile with the best estimate."""
    return max(_tiles(op, cpu))[1:]


def padded_rows(rows: int, tile: int) -> int:
    """Whole tiles, up to 1/32 more than needed, so that they can be divided into blocks that fit a cache."""
    tiles = -(-rows // tile)
    return tile * round_up(tiles, 1 << max(0, (tiles // 32).bit_length() - 1))


def _blocking(layout: Layout, rows: int, cpu: Cpu) -> dict[str, int]:
    depth = layout.steps
    whole = {"rows": rows, "panels": 1, "depth": depth, "unroll": unrolled_steps(depth)}
    row_bytes, panel_bytes = layout.row_bytes, layout.panel_bytes
    if layout.rows * row_bytes + 2 * panel_bytes <= cpu.l2_bytes * 3 // 4:
        return {**whole, "tiles": divisors(layout.rows // rows, MOST_TILES)[-1]}
    part = _part(layout, cpu) if layout.dot == 1 else None
    if 2 * panel_bytes > cpu.l2_bytes // 8 and part is not None:
        stays = layout.rows * row_bytes <= cpu.l2_bytes * 3 // 4
        return {**whole, "tiles": 1, "depth": part, "panels": 1 if stays else _panels_in_task(layout, cpu)}
    fitting = (cpu.l2_bytes * 3 // 4 - 2 * panel_bytes) // (rows * row_bytes)
    if fitting < 1:
        return {**whole, "tiles": _tiles_from_l3(layout, rows, cpu)}
    return {**whole, "tiles": divisors(layout.rows // rows, min(fitting, MOST_TILES))[-1]}


def _tiles_from_l3(layout: Layout, rows: int, cpu: Cpu) -> int:
    """About as many tiles as three quarters of a core's part of L3 hold: a panel is read anew for each task of them."""
    wanted = max(1, cpu.l3_bytes * 3 // 4 // cpu.cores // (rows * layout.row_bytes))
    every = divisors(layout.rows // rows, MOST_TILES)
    return min(every, key=lambda tiles: max(tiles / wanted, wanted / tiles))


def _part(layout: Layout, cpu: Cpu) -> int | None:
    """The most of the depth of which a panel fits L1 and all rows a quarter of L2; None if that is too little."""
    size = layout.op.element_bytes
    most = min(cpu.l1_bytes // (size * layout.width), cpu.l2_bytes // 4 // (size * layout.rows))
    depth = divisors(layout.op.k, most)[-1] if most else 1
    return depth if depth >= _LEAST_DEPTH else None


def _panels_in_task(layout: Layout, cpu: Cpu) -> int:
    """The most panels whose sums fit a quarter of L2, of those that keep the cores about as busy as any."""
    sum_bytes = layout.op.sum_bytes
    fitting = divisors(layout.panels, max(1, cpu.l2_bytes // 4 // (sum_bytes * layout.rows * layout.width)))

    def busy(panels: int) -> float:
        rounds = -(-layout.panels // (panels * cpu.cores))
        return layout.panels / (rounds * cpu.cores * panels)

    best = max(map(busy, fitting))
    return max(panels for panels in fitting if busy(panels) >= 0.95 * best)


def refusal(op: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why these parameters are no point of the space, in one phrase; empty if they are one."""
    if set(parameters) - {STEPS} != set(PARAMETERS):
        return f"the template's parameters are {', '.join(PARAMETERS)}"
    if min(parameters.values()) < 1:
        return "a parameter is less than 1"
    vectors, padded, rows = (parameters[name] for name in ("vectors", "padded", "rows"))
    tiles, panels, depth, unroll = (parameters[name] for name in ("tiles", "panels", "depth", "unroll"))
    layout = Layout.of(op, parameters)
    wrong = {
        "no instruction takes so many steps": layout.dot not in (1, _steps(op, cpu)),
        "the block is not a vector": layout.lanes != cpu.lanes(op.sum_bits),
        "the register tile does not fit": not fits(rows, vectors, cpu) or rows > _MOST_ROWS,
        "padded is not the rows in whole tiles": padded < op.m or bool(padded % rows) or padded > 2 * op.m + _MOST_ROWS,
        "tiles do not divide the rows": bool(padded // rows % tiles) or tiles > MOST_TILES,
        "panels do not divide the columns": bool(layout.panels % panels),
        "depth does not divide k": bool(layout.steps % depth),
        "unroll does not divide the depth": bool(depth % unroll) or unroll > 8,
        "tiles are of no use where the depth is split": depth < layout.steps and tiles > 1,
        "an instruction's sums are in registers alone": depth < layout.steps and layout.dot > 1,
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def points(op: Matmul, cpu: Cpu) -> Iterator[dict[str, int]]:
    """Return every point that is worth a trial: the register tiles that may be good, each in several blockings."""
    scored = list(_tiles(op, cpu))
    best = max(score for score, _, _ in scored)
    for score, rows, vectors in scored:
        few = op.m < _FEW_ROWS and rows == op.m
        if score >= _WORSE * best or few:
            padded = padded_rows(op.m, rows)
            layout = Layout(op, padded, cpu.lanes(op.sum_bits), vectors, _steps(op, cpu))
            yield from _blockings(layout, rows, cpu)


def _blockings(layout: Layout, rows: int, cpu: Cpu) -> Iterator[dict[str, int]]:
    fixed = {**_of_layout(layout), "rows": rows}
    first, depth = _blocking(layout, rows, cpu), layout.steps
    steps = [step for step in (1, 2, 4, 8) if depth % step == 0]
    blocks = divisors(layout.rows // rows, MOST_TILES)
    fitting = [tiles for tiles in blocks if tiles * rows * layout.row_bytes <= cpu.l2_bytes]
    for unroll in steps:
        for tiles in dict.fromkeys([blocks[-1], *fitting[-3:], *([first["tiles"]] if first["depth"] == depth else [])]):
            for panels in divisors(layout.panels, 2):
                yield {**fixed, "tiles": tiles, "panels": panels, "depth": depth, "unroll": unroll}
    if depth <= _LEAST_DEPTH or layout.dot > 1:
        return
    parts = [part for part in divisors(depth, depth - 1) if part >= _LEAST_DEPTH]
    for part in [part for part in parts if part * layout.rows * layout.op.element_bytes <= cpu.l2_bytes // 2][-3:]:
        for panels in dict.fromkeys([1, _panels_in_task(layout, cpu)]):
            unroll = unrolled_steps(part)
            yield {**fixed, "tiles": 1, "panels": panels, "depth": part, "unroll": unroll}


def estimate(op: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Return the cycles of the busiest core: its multiply-adds, or the arrival of its part of the weights."""
    layout = Layout.of(op, parameters)
    rows, vectors, panels = parameters["rows"], layout.vectors, parameters["panels"]
    tiles = layout.rows // rows
    split = parameters["depth"] < layout.steps
    blocks = 1 if split else tiles // parameters["tiles"]
    rounds = -(-blocks * -(-layout.panels // panels) // cpu.cores)
    in_task = panels * (tiles if split else parameters["tiles"])
    step = step_cycles(rows, vectors, cpu, layout.instruction(cpu)) + 0.5 / parameters["unroll"]
    overhead = (2 * rows * vectors + 20) * (layout.steps // parameters["depth"])
    compute = rounds * in_task * (layout.steps * step + overhead)
    arriving = layout.panels * layout.panel_bytes / cpu.cores / cpu.memory_bytes_per_cycle
    held = in_task // panels * rows * parameters["depth"] * layout.dot * op.element_bytes
    again = rounds * in_task * rows * layout.row_bytes / cpu.l3_bytes_per_cycle if held > cpu.l2_bytes else 0.0
    return max(compute, arriving) + again
