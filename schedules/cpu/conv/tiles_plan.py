"""How a convolution is divided for tile registers (AMX): the space, and its best estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from relaxc.schedules.cpu.common.dot_product import STEPS
from relaxc.schedules.cpu.common.matrix_code import ROW_BYTES, ROWS
from relaxc.schedules.cpu.common.register_tile import divisors
from relaxc.schedules.cpu.common.tile_registers import MATRIX, fits, instructions, interleaved
from relaxc.schedules.cpu.conv.blocked_plan import is_blockable
from relaxc.schedules.cpu.conv.tiles_layout import Layout
from relaxc.schedules.dots import Dot
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Conv2d

__all__ = ["PARAMETERS", "Tasks", "default", "estimate", "instruction_of", "points", "refusal"]

PARAMETERS = ("block", STEPS, MATRIX, "vectors", "lines", "height", "chunks")
"""Blocks of `block` channels, weights interleaved by `dot`; the others are those of `cpu.conv2d_tiles`."""

_SHAPES = ((2, 2), (2, 1), (1, 2), (3, 1), (1, 3), (1, 1))
"""Registers of sums, down and across."""

_BEGINNING = 8
"""What a task's configuration and its two buffers take, in beginnings of register tiles."""

_MOST_SUMS_BYTES = 16 << 10
"""Of the sums of a strip, which stay in L1."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """What a plan's parameters make of a layout: tasks, strips of rows in them, and register tiles in these."""

    layout: Layout
    down: int
    vectors: int
    lines: int
    height: int
    chunks: int

    @staticmethod
    def of(layout: Layout, parameters: Mapping[str, int]) -> Tasks:
        """Return what these parameters make."""
        return Tasks(layout, *(parameters[name] for name in (MATRIX, "vectors", "lines", "height", "chunks")))

    @property
    def strides(self) -> int:
        """Tasks over the rows of the result."""
        return -(-self.layout.rows.results // self.height)

    @property
    def strips(self) -> int:
        """Of `lines` rows, in a task."""
        return -(-self.height // self.lines)

    @property
    def pixels(self) -> int:
        """Of a strip, those between its rows included."""
        return (self.lines - 1) * self.layout.columns.extent + self.layout.columns.results

    @property
    def tiles(self) -> int:
        """Register tiles of a strip."""
        return -(-self.pixels // (self.down * ROWS))

    @property
    def rows(self) -> int:
        """Pixels of a register tile: as many in each, so that the last may have some of no use."""
        return -(-self.pixels // self.tiles)

    @property
    def each(self) -> int:
        """Pixels of a register; the last of a tile may have fewer."""
        return -(-self.rows // self.down)

    @property
    def chunk_blocks(self) -> int:
        """Blocks of output channels of a task."""
        return self.layout.blocks // self.chunks

    @property
    def panels(self) -> list[tuple[int, int]]:
        """How many panels of how many blocks a task has: those of `vectors`, then what is left."""
        count, rest = divmod(self.chunk_blocks, self.vectors)
        return [each for each in ((count, self.vectors), (1, rest)) if min(each)]

    def lines_ahead(self, across: int) -> int:
        """Return the lines of the next panel that each step fetches, so that all tiles of this one fetch all of it.

        None for a single tile, whose loads would wait for as many, and where there is no next one.
        """
        tiles = self.strips * self.tiles
        return 0 if tiles == 1 or across == self.chunk_blocks else -(-across * ROWS // tiles)

    @property
    def source_parts(self) -> int:
        """Parts of the regrouped image's channels that a task reads."""
        layout = self.layout
        return layout.depths * (layout.op.groups // self.chunks if layout.op.groups > 1 else 1)

    @property
    def source_rows(self) -> int:
        """Its rows of a phase."""
        return self.height + self.layout.rows.reach

    @property
    def source_size(self) -> int:
        """Its elements, and those behind them that tiles read past the last row."""
        columns = self.layout.columns
        plane = self.source_rows * columns.extent
        last = (self.strips - 1) * self.lines * columns.extent + self.tiles * self.rows
        last += self.layout.rows.reach * columns.extent + columns.reach
        planes = self.source_parts * self.layout.phases
        return (planes * plane + max(0, last - plane)) * self.layout.depth

    @property
    def leaves_image(self) -> bool:
        """Whether some task asks for rows that the image does not have."""
        return not self.layout.rows.is_inside or bool(self.layout.rows.results % self.height)


@lru_cache(1024)
def instruction_of(op: Conv2d, cpu: Cpu) -> Dot | None:
    """Return the instruction on tile registers that the convolution is made of; None without one.

    A block of channels is as many as it has columns.
    """
    return None if op.plain else next(instructions(op.operands, op.accumulate, cpu), None)


def default(op: Conv2d, cpu: Cpu) -> dict[str, int] | None:
    """Return the point of the least estimate; None where the CPU has no such instruction."""
    found = _best(op, cpu)
    return dict(found) if found else None


@lru_cache(1024)
def _best(op: Conv2d, cpu: Cpu) -> tuple[tuple[str, int], ...]:
    """The items of that point, once for all passes that ask: a network has few convolutions that differ."""
    found = min(points(op, cpu), key=lambda point: estimate(op, point, cpu), default={})
    return tuple(found.items())


def refusal(op: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why these parameters are no point of the space, in one phrase; empty if they are one."""
    if set(parameters) != set(PARAMETERS):
        return f"the template's parameters are {', '.join(PARAMETERS)}"
    if min(parameters.values()) < 1:
        return "a parameter is less than 1"
    dot = instruction_of(op, cpu)
    if dot is None or not op.is_known:
        return "the target has no tile instruction for the convolution"
    layout = Layout.of(op, parameters)
    tasks = Tasks.of(layout, parameters)
    grouped = op.groups > 1
    wrong = {
        "the instruction takes another number of steps": parameters[STEPS] != interleaved(dot),
        "the block is not a row of a tile register": parameters["block"] != dot.n,
        "its groups do not fill blocks of channels": not is_blockable(op, dot.n),
        "the register tile does not fit": not fits(tasks.down, tasks.vectors),
        "chunks do not divide the channels": bool((op.groups if grouped else layout.blocks) % tasks.chunks),
        "a panel is of more than one group": grouped and bool(layout.blocks // op.groups % tasks.vectors),
        "a strip is larger than a task": not tasks.lines <= tasks.height <= op.result[0],
        "the sums of a strip leave L1": _sums_bytes(tasks) > _MOST_SUMS_BYTES and tasks.lines > 1,
        "some of its tile registers have no rows": (tasks.down - 1) * tasks.each >= tasks.rows,
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def _sums_bytes(tasks: Tasks) -> int:
    return tasks.tiles * tasks.rows * tasks.vectors * tasks.layout.lanes * tasks.layout.op.sum_bytes


def points(op: Conv2d, cpu: Cpu) -> Iterator[dict[str, int]]:
    """Return every point that is worth a trial; none where the CPU has no such instruction."""
    dot = instruction_of(op, cpu)
    if dot is None or not is_blockable(op, dot.n) or not op.is_known:
        return
    packing = {"block": dot.n, STEPS: interleaved(dot)}
    layout = Layout.of(op, packing)
    rows = op.result[0]
    for down, across in _SHAPES:
        for chunks in divisors(op.groups if op.groups > 1 else layout.blocks, cpu.cores):
            heights = {-(-rows // tasks) for tasks in (1, 2, 4, 8, 16, 32, 64, rows) if tasks <= rows}
            for height in sorted(heights):
                for tasks in _useful(Tasks(layout, down, across, 1, height, chunks)):
                    point = {
                        **packing,
                        MATRIX: down,
                        "vectors": across,
                        "lines": tasks.lines,
                        "height": height,
                        "chunks": chunks,
                    }
                    if not refusal(op, point, cpu):
                        yield point


def _useful(one: Tasks) -> list[Tasks]:
    """Strips for such tasks: of one row, of the most, and of those that have the fewest registers for all of a task."""
    tried = [one]
    while tried[-1].lines < one.height and _sums_bytes(more := replace(one, lines=len(tried) + 1)) <= _MOST_SUMS_BYTES:
        tried.append(more)
    best = min(tried, key=lambda tasks: (tasks.strips * tasks.tiles, tasks.lines))
    return list(dict.fromkeys((one, best, tried[-1])))


def estimate(op: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Return the cycles of the busiest core: regrouping, then of each strip its instructions, with operands from L2.

    Where a kernel has several taps, they read an image's part from L1 but for the first; panels that fill less than
    half of L1 stay there while strips pass. Panels come from L3 in a core's first task, and later where L2 loses them.
    """
    dot, layout, costs = instruction_of(op, cpu), Layout.of(op, parameters), cpu.costs
    assert dot is not None, op
    tasks = Tasks.of(layout, parameters)
    planes = tasks.source_parts * layout.phases * tasks.source_rows * layout.columns.extent
    copy = planes * max(layout.parts, 2 * ROW_BYTES / costs.l2_bytes_per_cycle)
    if 2 * planes * ROW_BYTES > cpu.l2_bytes:
        copy += 2 * planes * ROW_BYTES / cpu.l3_bytes_per_cycle
    panel_bytes = layout.steps * ROW_BYTES * ROWS
    keeps = 2 * tasks.chunk_blocks * panel_bytes <= cpu.l2_bytes
    first = later = copy + _BEGINNING * costs.tile
    for count, across in tasks.panels:
        tiles = tasks.strips * tasks.tiles
        stays = 2 * across * panel_bytes <= cpu.l1_bytes and tiles > 1
        near = 2 * planes * ROW_BYTES <= cpu.l1_bytes and count > 1
        image = 0.0 if near else tasks.rows * ROW_BYTES / layout.taps
        weights = 0 if stays else across * ROWS * ROW_BYTES
        loads = (tasks.rows + ROWS * across) / cpu.loads_per_cycle
        arithmetic = max(tasks.down * across / dot.throughput, dot.latency)
        step = max(arithmetic, loads, (image + weights) / costs.tile_bytes_per_cycle)
        work = tiles * (layout.steps * step + 2 * tasks.rows * across + costs.tile)
        arriving = across * panel_bytes / cpu.l3_bytes_per_cycle
        of_first = max(work, arriving) if tasks.lines_ahead(across) else work + arriving
        first += count * of_first
        later += count * (work if keeps else of_first)
    rounds = -(-(op.batch or 1) * tasks.chunks * tasks.strides // cpu.cores)
    return first + (rounds - 1) * later
