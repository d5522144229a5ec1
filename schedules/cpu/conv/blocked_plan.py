"""How a direct convolution on blocked layouts is divided: register tile and tasks; the default and the space."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import add

from relaxc.schedules.cpu.common.dot_product import STEPS, instruction, steps_of
from relaxc.schedules.cpu.common.register_tile import LOOPED, UNROLLED_COLUMNS, divisors, fits, round_up, step_cycles
from relaxc.schedules.dots import Dot
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Conv2d

__all__ = [
    "PARAMETERS",
    "Layout",
    "default",
    "dot_of",
    "estimate",
    "is_blockable",
    "points",
    "refusal",
    "row_tile",
    "tile_cycles",
]

PARAMETERS = ("block", "flat", "padded", "rows", "vectors", "height", "chunks", "unroll", "prefetch")
"""The layout is `block` channels in the innermost axis, `flat` 1 where rows and columns of the image are one axis, and
`padded` columns of the accumulator, 0 where they are not known, and `dot` channels that an instruction
takes at once, where there is one: a step of `unroll` is so many. The others are those of `cpu.conv2d_blocked`."""

_AS_GOOD = 1.03
"""The part over the fewest cycles within which larger tasks, whose panels are used more often, are the better ones."""

_LEAST_TILES = 4
"""Tiles in a task that use a panel, under which fetching the next one adds too much to reading this one."""

_MOST_VECTORS = 4
_MOST_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """The accumulator `[n, o, h, w, v]` of an operator for a block of channels and padded columns.

    With `flat` the operator's h is folded into w: then the tiles run over the ends of image rows. Sizes that are not
    known are those that a plan is made for.
    """

    op: Conv2d
    lanes: int
    flat: bool
    columns: int
    dot: int = 1

    @property
    def batch(self) -> int:
        """Images, 1 where their number is not known."""
        return self.op.batch or 1

    @property
    def blocks(self) -> int:
        """Blocks of output channels, the last with zeros past the filters."""
        return -(-self.op.filters // self.lanes)

    @property
    def in_lanes(self) -> int:
        """Input channels in the innermost axis of the weights."""
        return self.dot if self.op.plain else self.lanes

    @property
    def steps(self) -> int:
        """Steps of the sum over the input channels in the innermost axis of the weights."""
        return self.in_lanes // self.dot

    @property
    def height(self) -> int:
        """Rows of the accumulator."""
        return 1 if self.flat else self.assumed.result[0]

    @property
    def assumed(self) -> Conv2d:
        """The operator with all sizes."""
        return self.op.assumed()

    @property
    def folded(self) -> bool:
        """Whether its tiles are counted along one axis for all rows, of which there are several."""
        return self.flat and self.op.result[0] != 1

    @property
    def panel(self) -> int:
        """Elements of the weights of one block of output channels."""
        op = self.op
        return self.lanes * -(-op.channels // op.groups // self.in_lanes) * self.in_lanes * op.kernel[0] * op.kernel[1]

    @property
    def row_bytes(self) -> int:
        """Bytes of input to a row of the accumulator, or to a column where it is folded.

        Of an image that is read with strides, those parts alone that are read.
        """
        op = self.assumed
        (rows, columns), (top, left, bottom, right) = op.result, op.padding
        pixels = min(op.height + top + bottom, op.kernel[0] * rows) * min(
            op.width + left + right, op.kernel[1] * columns
        )
        channels = op.channels if op.plain else round_up(op.channels, self.lanes)
        return channels * pixels * op.element_bytes // (self.columns if self.folded else self.height)

    @property
    def small(self) -> bool:
        """Whether its tiles may be unrolled, as those must be that run over the ends of image rows: for addresses."""
        return self.folded and self.columns <= UNROLLED_COLUMNS

    @property
    def loopable(self) -> bool:
        """Whether they need not be, for their addresses are linear."""
        return self.small and _is_dense(self.op)

    @property
    def at_call(self) -> tuple[bool, bool]:
        """Whether rows, and columns, are counted when the kernel is called."""
        return self.op.height == 0, self.op.width == 0

    def parts(self, rows: int) -> int:
        """Return what a task has a number of: tiles where it is folded, else rows."""
        return self.columns // rows if self.folded else self.height

    def instruction(self, cpu: Cpu) -> Dot | None:
        """Return the instruction that a step is; None where that is a multiply-add, or `cpu` does not have it."""
        return dot_of(self.op, cpu) if self.dot > 1 else None

    @staticmethod
    def of(op: Conv2d, parameters: Mapping[str, int]) -> Layout:
        """Return the layout that a plan's parameters describe."""
        columns = parameters["padded"] or round_up(op.assumed().result[1], parameters["rows"])
        return Layout(op, parameters["block"], bool(parameters["flat"]), columns, steps_of(parameters))


def dot_of(op: Conv2d, cpu: Cpu) -> Dot | None:
    """Return the instruction that the convolution is made of; None if it is multiply-adds of widened operands."""
    return instruction(op.operands, op.accumulate, cpu.lanes(op.sum_bits), cpu)


def _steps(op: Conv2d, cpu: Cpu) -> int:
    dot = dot_of(op, cpu)
    return 1 if dot is None else dot.k


def is_blockable(op: Conv2d, lanes: int) -> bool:
    """Return whether its groups fill blocks of `lanes` channels, or there is but one."""
    return op.groups == 1 or op.filters // op.groups % lanes == op.channels // op.groups % lanes == 0


def row_tile(extent: int, most: int) -> int:
    """Return the rows of a register tile for `extent` rows: of most/2..most, what wastes least, the most on a tie."""
    if extent <= most:
        return extent
    return min(range(most, most // 2, -1), key=lambda rows: (round_up(extent, rows), -rows))


def _most_rows(cpu: Cpu) -> int:
    """Rows of a tile of two vectors that leave registers for operands."""
    return cpu.tile_rows(2)


def _is_dense(op: Conv2d) -> bool:
    """Whether output pixel i reads input pixel i alone, so that rows need not be told apart."""
    return {*op.kernel, *op.strides} == {1} and not any(op.padding)


def _short_rows(op: Conv2d, most_rows: int) -> bool:
    """Whether tiles within rows would leave a third of the accumulators, and the image is small enough to unroll."""
    height, width = op.result
    return height * width <= UNROLLED_COLUMNS and 3 * row_tile(width, most_rows) <= 2 * most_rows


def default(op: Conv2d, cpu: Cpu) -> dict[str, int]:
    """Return the register tile and the tasks that the estimates find to be the fastest."""
    flat = op.is_known and (_is_dense(op) or _short_rows(op, _most_rows(cpu)))
    columns = op.result[0] * op.result[1] if flat else op.result[1]
    lanes = cpu.lanes(op.sum_bits)
    tiles = _tiles(columns, -(-op.filters // lanes), cpu)
    padded, rows, vectors = min(tiles, key=lambda tile: _tile_cost(op, tile, cpu))
    layout = Layout(op, lanes, flat, padded or round_up(op.assumed().result[1], rows), _steps(op, cpu))
    return {**_of_layout(layout), **_blocking(layout, rows, vectors, cpu)}


def _tiles(columns: int, blocks: int, cpu: Cpu) -> Iterator[tuple[int, int, int]]:
    """Padded columns, rows and vectors of the tiles to choose from: for each number of vectors the largest that fits.

    One vector has the rows of two: more were slower, for the loads of as many broadcasts are what it waits for. Where
    the columns are not known, narrower tiles stand by for images of few (`at_call.widths`).
    """
    for vectors in divisors(blocks, _MOST_VECTORS):
        most = min(_most_rows(cpu), cpu.tile_rows(vectors))
        if not columns:
            yield 0, most, vectors
            continue
        padded = round_up(columns, row_tile(columns, most))
        yield padded, divisors(padded, most)[-1], vectors


def _tile_cost(op: Conv2d, tile: tuple[int, int, int], cpu: Cpu) -> tuple[float, int, int]:
    """Cycles of a tile of all filters for each of its vectors and columns; on a tie more rows and more vectors win."""
    padded, rows, vectors = tile
    return (padded or 1) * tile_cycles(op, rows, vectors, cpu) / (rows * vectors), -rows, -vectors


def tile_cycles(op: Conv2d, rows: int, vectors: int, cpu: Cpu) -> float:
    """Return the cycles of a register tile over the whole sum."""
    dot = dot_of(op, cpu)
    steps = op.kernel[0] * op.kernel[1] * -(-op.channels // op.groups // (1 if dot is None else dot.k))
    return steps * step_cycles(rows, vectors, cpu, dot) + cpu.costs.tile


def _of_layout(layout: Layout) -> dict[str, int]:
    dot = {STEPS: layout.dot} if layout.dot > 1 else {}
    padded = 0 if layout.at_call[1] else layout.columns
    return {"block": layout.lanes, "flat": int(layout.flat), "padded": padded, **dot}


def _blocking(layout: Layout, rows: int, vectors: int, cpu: Cpu) -> dict[str, int]:
    # LLVM loads the weights of all steps of the innermost loop first: a vector's, or all where an instruction takes
    # several products of each column, as that reads the image's element from a register.
    spare = cpu.vector_registers - rows * vectors - vectors - 1
    unroll = divisors(layout.steps, min(4, 1 + max(0, spare) // (vectors if layout.dot > 1 else 1)))[-1]
    part_bytes = layout.row_bytes * (rows if layout.folded else 1)
    heights = divisors(layout.parts(rows), max(1, cpu.l2_bytes // 4 // max(1, part_bytes)))
    chunks = divisors(layout.blocks // vectors, cpu.cores)
    cycles = {(height, chunk): _cycles(layout, cpu, rows, height, chunk) for height in heights for chunk in chunks}
    good = [point for point, count in cycles.items() if count <= _AS_GOOD * min(cycles.values())]
    height, chunk = max(good, key=lambda point: (-point[1], point[0]))
    tile = {"rows": rows, "vectors": vectors, "unroll": unroll, **({LOOPED: 1} if layout.loopable else {})}
    return {**tile, "height": height, "chunks": chunk, "prefetch": int(_fetches(layout, rows, height))}


def _fetches(layout: Layout, rows: int, height: int) -> bool:
    many = height * (1 if layout.folded else layout.columns // rows) >= _LEAST_TILES
    return many and not any(layout.at_call)


def estimate(op: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Return the cycles of a point: `_cycles`, and what a register tile leaves of the multiply-adds."""
    layout, rows, vectors = Layout.of(op, parameters), parameters["rows"], parameters["vectors"]
    dot = layout.instruction(cpu)
    full = rows * vectors / (cpu.fma_per_cycle if dot is None else dot.throughput)
    waste = (step_cycles(rows, vectors, cpu, dot) + 1 / parameters["unroll"]) / full
    return waste * _cycles(layout, cpu, rows, parameters["height"], parameters["chunks"])


def _cycles(layout: Layout, cpu: Cpu, rows: int, height: int, chunks: int) -> float:
    """An estimate of all rounds of tasks: the multiply-adds, and reading weights at first, or always if L2 loses them.

    A core that computes a part of the rows finds most of its input in its own L2, for it wrote it. One that computes a
    part of the channels waits for input that the others wrote.
    """
    size = layout.op.element_bytes
    tasks = layout.batch * -(-layout.parts(rows) // height) * chunks
    columns = height * (rows if layout.folded else layout.columns)
    weights = layout.panel * layout.blocks // chunks
    dot = layout.instruction(cpu)
    compute = weights * columns / (cpu.lanes(layout.op.sum_bits) * cpu.fma_per_cycle if dot is None else dot.rate)
    read = size * weights / cpu.l3_bytes_per_cycle
    again = read if size * weights > cpu.l2_bytes // 2 else 0.0
    wait = height * layout.row_bytes * (rows if layout.folded else 1) / cpu.l3_bytes_per_cycle if chunks > 1 else 0.0
    both: Callable[[float, float], float] = max if _fetches(layout, rows, height) else add
    rounds = -(-tasks // cpu.cores)
    return both(compute, read) + (rounds - 1) * both(compute, again) + rounds * wait


def refusal(op: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why these parameters are no point of the space, in one phrase; empty if they are one."""
    if set(parameters) - {STEPS, LOOPED} != set(PARAMETERS):
        return f"the template's parameters are {', '.join(PARAMETERS)}"
    if min(value for name, value in parameters.items() if name not in ("flat", "prefetch", "padded")) < 1:
        return "a parameter is less than 1"
    layout, rows, vectors = Layout.of(op, parameters), parameters["rows"], parameters["vectors"]
    columns = op.result[0] * op.result[1] if layout.flat else op.result[1]
    most = columns + cpu.vector_registers if columns else 1
    wrong = {
        "no instruction takes so many channels": layout.dot not in (1, _steps(op, cpu)),
        "its groups do not fill blocks of channels": not is_blockable(op, layout.lanes),
        "the blocks of channels are not as wide as a vector": layout.lanes != cpu.lanes(op.sum_bits),
        "flat and prefetch are 0 or 1": {parameters["flat"], parameters["prefetch"]} - {0, 1} != set(),
        "padded is not the columns in whole tiles": not columns <= parameters["padded"] < most,
        "an image of unknown size is flat, or fetches ahead": any(layout.at_call)
        and bool(parameters["flat"] or parameters["prefetch"]),
        "rows do not divide the columns": bool(layout.columns % rows),
        "looped is 1, of small dense images": LOOPED in parameters
        and (parameters[LOOPED], layout.loopable) != (1, True),
        "a folded image is dense or small": layout.folded and not _is_dense(op) and not layout.small,
        "the register tile does not fit": not fits(rows, vectors, cpu) or vectors > _MOST_VECTORS,
        "vectors and chunks do not divide the channels": bool(layout.blocks % (vectors * parameters["chunks"])),
        "height does not divide the rows": not layout.at_call[0] and bool(layout.parts(rows) % parameters["height"]),
        "unroll does not divide the channels": bool(layout.steps % parameters["unroll"]) or parameters["unroll"] > 4,
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def points(op: Conv2d, cpu: Cpu) -> Iterator[dict[str, int]]:
    """Return every point that is worth a trial: each register tile that fits, with the tasks that may be good."""
    lanes = cpu.lanes(op.sum_bits)
    blocks = -(-op.filters // lanes)
    for flat in (False, True) if op.is_known else (False,):
        columns = op.result[0] * op.result[1] if flat else op.result[1]
        for vectors in divisors(blocks, _MOST_VECTORS):
            for rows in _useful_rows(columns or op.assumed().result[1], vectors, cpu):
                layout = Layout(op, lanes, flat, round_up(columns or op.assumed().result[1], rows), _steps(op, cpu))
                for rest in _blockings(layout, rows, vectors, cpu):
                    point = {**_of_layout(layout), "rows": rows, "vectors": vectors, **rest}
                    if not refusal(op, point, cpu):
                        yield point


def _useful_rows(columns: int, vectors: int, cpu: Cpu) -> list[int]:
    """Rows of tiles of so many vectors, of those with equal numbers of tiles the smallest."""
    fitting = [rows for rows in range(1, columns + 1) if fits(rows, vectors, cpu)]
    enough = [rows for rows in fitting if 2 * rows >= fitting[-1]]
    return list({-(-columns // rows): rows for rows in reversed(enough)}.values())


def _blockings(layout: Layout, rows: int, vectors: int, cpu: Cpu) -> Iterator[dict[str, int]]:
    first = _blocking(layout, rows, vectors, cpu)
    looped = {name: value for name, value in first.items() if name == LOOPED}
    heights = divisors(layout.parts(rows), 64)
    near = sorted(heights, key=lambda height: abs(height - first["height"]))[:3]
    for height in near:
        for chunks in divisors(layout.blocks // vectors, cpu.cores):
            for unroll in divisors(layout.steps, 4):
                for prefetch in (0, 1):
                    yield {"height": height, "chunks": chunks, "unroll": unroll, "prefetch": prefetch, **looped}
