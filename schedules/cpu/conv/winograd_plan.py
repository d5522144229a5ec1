"""How a Winograd convolution is divided, and how many cycles it or a direct one takes; the default and the space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf

from relaxc.schedules.cpu.common.register_tile import divisors, fits, step_cycles
from relaxc.schedules.cpu.conv import blocked_plan
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Conv2d

__all__ = [
    "PARAMETERS",
    "Blocking",
    "Problem",
    "blocking",
    "default",
    "direct_cycles",
    "estimate",
    "is_winograd",
    "points",
    "problem_of",
    "refusal",
]

PARAMETERS = ("block", "size", "vectors", "padded", "rows", "tasks", "chunks")
"""The layout is `block` channels in the innermost axis, tiles of `size` x `size` outputs, `vectors` of a panel of the
weights and `padded` tiles. The others are those of `cpu.winograd`."""

SIZES = (2, 4)
WORTH = 0.9
"""What a method must take of the time of a simpler one (fewer weights, smaller errors) to be chosen."""

MOST_ROWS = 28
MOST_TILES_IN_TASK = 128
MOST_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class Problem:
    """`tiles` of `size` x `size` outputs of a 3x3 convolution to `blocks` of `lanes` channels, in `groups` of them.

    Each output channel is a sum over the `depth` input channels of its group. The tiles are of `images` of one size.
    """

    size: int
    tiles: int
    depth: int
    blocks: int
    lanes: int
    images: int
    element_bytes: int
    groups: int = 1

    @property
    def points(self) -> int:
        """The products of matrices: (size + 2)^2."""
        return (self.size + 2) ** 2

    @property
    def weight_bytes(self) -> int:
        """Of the transformed weights."""
        return self.points * self.depth * self.blocks * self.lanes * self.element_bytes

    def widths(self) -> tuple[int, ...]:
        """Return the vectors that a panel may have, all of one group."""
        return divisors(self.blocks // self.groups, 4)

    def chunks(self, vectors: int) -> tuple[int, ...]:
        """Return into how many chunks panels of so many vectors may be divided: parts of groups, or whole ones."""
        most = max(MOST_CHUNKS, self.groups)
        return tuple(
            chunks
            for chunks in divisors(self.blocks // vectors, most)
            if chunks % self.groups == 0 or self.groups % chunks == 0
        )

    def depth_of(self, chunks: int) -> int:
        """Return the input channels that one of so many chunks needs."""
        return self.depth * max(1, self.groups // chunks)


@dataclass(frozen=True, slots=True)
class Blocking:
    """The register tile (`rows` tiles by `vectors` of output channels), the `tiles` of a task, of which `tasks` cover
    all, and the `chunks` of output channels that are tasks of their own; `cycles` is the estimate."""

    rows: int
    vectors: int
    tiles: int
    tasks: int
    chunks: int
    cycles: float


@cache
def blocking(problem: Problem, cpu: Cpu, *, vectors: int | None = None, padded: int | None = None) -> Blocking:
    """Return the blocking of the fewest cycles; with `vectors` and `padded` for a layout that is given.

    Tasks are tried in the order of what they take at least, up to those that take more than one that was found.
    """
    tasks = ((_least_cycles(problem, cpu, *each), each) for each in _tasks_of_all(problem, cpu, vectors, padded))
    found: list[Blocking] = []
    fewest = inf
    for least, each in sorted(tasks):
        if least > fewest:
            break
        best = min(_blockings_of(problem, cpu, *each), key=_preference)
        found.append(best)
        fewest = min(fewest, best.cycles)
    return min(found, key=_preference)


def _preference(found: Blocking) -> tuple[float, ...]:
    """The fewest cycles first; of equals the one that a search of all would come to first."""
    return found.cycles, found.tiles, found.chunks, found.vectors, found.rows


def _blockings(problem: Problem, cpu: Cpu) -> Iterator[Blocking]:
    for each in _tasks_of_all(problem, cpu, None, None):
        yield from _blockings_of(problem, cpu, *each)


def _tasks_of_all(
    problem: Problem, cpu: Cpu, vectors: int | None, padded: int | None
) -> Iterator[tuple[int, int, int, int]]:
    """The rows and vectors of register tiles, of `vectors` if given, with the tiles of a task, and the tasks."""
    for width in problem.widths() if vectors is None else (vectors,):
        for rows in range(1, min(MOST_ROWS, problem.tiles) + 1):
            if not fits(rows, width, cpu):
                break
            for tiles, tasks in _tasks(problem, rows, padded):
                yield rows, width, tiles, tasks


def _blockings_of(problem: Problem, cpu: Cpu, rows: int, vectors: int, tiles: int, tasks: int) -> Iterator[Blocking]:
    for chunks in problem.chunks(vectors):
        cycles = _cycles(problem, cpu, rows, vectors, tiles, tasks, chunks)
        yield Blocking(rows, vectors, tiles, tasks, chunks, cycles)


def _least_cycles(problem: Problem, cpu: Cpu, rows: int, vectors: int, tiles: int, tasks: int) -> float:
    """What `_cycles` is at least, in any chunks: all cores are busy, and of what is read there are the weights, once
    from memory and once a task from L2.
    """
    step = step_cycles(rows, vectors, cpu)
    tile = problem.depth * step / cpu.costs.product_efficiency + 2 * rows * vectors + cpu.costs.tile
    products = problem.points * (problem.blocks // vectors) * (tiles // rows) * tasks * tile
    transforms = cpu.costs.transform * problem.points * problem.blocks * tiles * tasks
    weights = problem.weight_bytes - max(MOST_CHUNKS, problem.groups)  # of chunks of whole bytes
    arriving = weights / cpu.memory_bytes_per_cycle + tasks * weights / cpu.costs.l2_bytes_per_cycle / 2
    return (products + transforms + arriving) / cpu.cores


def _tasks(problem: Problem, rows: int, padded: int | None) -> Iterator[tuple[int, int]]:
    """Tiles in a task and tasks. A task is a part of an image, or whole ones: TVM cannot bound what others read."""
    total, each = problem.tiles, problem.tiles // problem.images
    for tiles in range(rows, max(rows, min(total + rows - 1, MOST_TILES_IN_TASK)) + 1, rows):
        if problem.images > 1 and each % tiles and tiles % each:
            continue
        if padded is None:
            yield tiles, -(-total // tiles)
        elif padded % tiles == 0:
            yield tiles, padded // tiles


def _cycles(problem: Problem, cpu: Cpu, rows: int, vectors: int, tiles: int, tasks: int, chunks: int) -> float:
    """The estimate: arithmetic of the busiest core and the time in which what it reads arrives.

    The weights come from memory, as a model's do not stay in L3 from run to run: prefetching hides half of that, and a
    model's other traffic takes as much again. Each task reads them from L2, and what that cannot hold from L3.
    """
    points, depth, panels = problem.points, problem.depth, problem.blocks // vectors // chunks
    rounds = -(-tasks * chunks // cpu.cores)
    step = step_cycles(rows, vectors, cpu)
    if depth * vectors * problem.lanes * problem.element_bytes > cpu.l1_bytes // 2:
        step = max(step, (vectors * problem.lanes + rows) * problem.element_bytes / cpu.costs.l2_bytes_per_cycle)
    tile = depth * step / cpu.costs.product_efficiency + 2 * rows * vectors + cpu.costs.tile
    products = points * panels * tiles // rows * tile
    read = problem.depth_of(chunks)
    transforms = cpu.costs.transform * points * tiles * (read // problem.lanes + panels * vectors)
    data = points * read * tiles * problem.element_bytes
    images = problem.size**2 * tiles * (read + panels * vectors * problem.lanes) * problem.element_bytes
    held = data + points * tiles * vectors * problem.lanes * problem.element_bytes + images
    weights = problem.weight_bytes // chunks
    own_chunks = -(-chunks // cpu.cores) if chunks >= cpu.cores else 1
    again = 0 if held + weights <= cpu.l2_bytes else weights * (rounds - own_chunks) + data * rounds
    if held + weights // panels // points > cpu.l2_bytes:
        again += rounds * panels * data
    half_hidden = again / cpu.l3_bytes_per_cycle + rounds * weights / cpu.costs.l2_bytes_per_cycle
    arriving = weights * own_chunks / cpu.memory_bytes_per_cycle + half_hidden / 2
    return rounds * (products + transforms) + arriving


def direct_cycles(op: Conv2d, cpu: Cpu) -> float:
    """Return the estimate of the same kind for `cpu.conv2d_blocked`."""
    lanes = cpu.lanes(op.sum_bits)
    depth, blocks = -(-op.channels // op.groups // lanes) * lanes, -(-op.filters // lanes)
    pixels = op.batch * op.result[0] * op.result[1]
    products = 9 * pixels * depth * blocks / cpu.fma_per_cycle / cpu.cores / cpu.costs.direct_efficiency
    stream = 9 * depth * blocks * lanes * op.element_bytes / cpu.cores / cpu.memory_bytes_per_cycle
    return products + stream


def is_winograd(op: Conv2d, cpu: Cpu) -> bool:
    """Return whether it is a plain 3x3 convolution of known size, whose groups have no fewer channels than a vector."""
    plain = op.kernel == (3, 3) and {*op.strides, *op.dilation} == {1} and not op.plain and not op.gated
    lanes = cpu.lanes(op.sum_bits)
    wide = min(op.channels, op.filters) // op.groups >= lanes and blocked_plan.is_blockable(op, lanes)
    return plain and wide and op.batch > 0 and op.is_known


def problem_of(op: Conv2d, size: int, cpu: Cpu) -> Problem:
    """Return the problem that tiles of `size` x `size` make of an operator that `is_winograd` takes."""
    lanes, (rows, columns) = cpu.lanes(op.sum_bits), op.result
    tiles = op.batch * -(-rows // size) * -(-columns // size)
    depth, blocks = -(-op.channels // op.groups // lanes) * lanes, -(-op.filters // lanes)
    return Problem(size, tiles, depth, blocks, lanes, op.batch, op.element_bytes, op.groups)


def default(op: Conv2d, cpu: Cpu) -> dict[str, int] | None:
    """Return the parameters of the faster of F(2x2) and F(4x4); None where the direct method is better than both.

    That is as fast as other direct convolutions are, unless its own plan is slower: one of few pixels to a task reads
    its weights from L3 for each.
    """
    direct = blocked_plan.estimate(op, blocked_plan.default(op, cpu), cpu)
    best, best_cycles = None, max(direct, direct_cycles(op, cpu))
    for size in SIZES:
        found = blocking(problem_of(op, size, cpu), cpu)
        if found.cycles < WORTH * best_cycles:
            best, best_cycles = _parameters(size, found, cpu.lanes(op.sum_bits)), found.cycles
    return best


def _parameters(size: int, found: Blocking, lanes: int) -> dict[str, int]:
    layout = {"block": lanes, "size": size, "vectors": found.vectors, "padded": found.tiles * found.tasks}
    return {**layout, "rows": found.rows, "tasks": found.tasks, "chunks": found.chunks}


def estimate(op: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> float:
    """Return the cycles of a point."""
    problem = problem_of(op, parameters["size"], cpu)
    tasks, chunks = parameters["tasks"], parameters["chunks"]
    tiles = parameters["padded"] // tasks
    return _cycles(problem, cpu, parameters["rows"], parameters["vectors"], tiles, tasks, chunks)


def refusal(op: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why these parameters are no point of the space, in one phrase; empty if they are one."""
    if set(parameters) != set(PARAMETERS):
        return f"the template's parameters are {', '.join(PARAMETERS)}"
    if not is_winograd(op, cpu):
        return "it is no plain 3x3 convolution"
    if min(parameters.values()) < 1 or parameters["size"] not in SIZES:
        return "a parameter is less than 1, or the tiles are not 2x2 or 4x4"
    problem = problem_of(op, parameters["size"], cpu)
    vectors, padded, rows, tasks = (parameters[name] for name in ("vectors", "padded", "rows", "tasks"))
    if padded % tasks:
        return "tasks do not divide the tiles"
    tiles, each = padded // tasks, problem.tiles // problem.images
    wrong = {
        "the blocks of channels are not as wide as a vector": parameters["block"] != problem.lanes,
        "the register tile does not fit": not fits(rows, vectors, cpu) or rows > MOST_ROWS,
        "rows do not divide the tiles of a task": bool(tiles % rows) or tiles > MOST_TILES_IN_TASK,
        "a task more than covers the tiles": not problem.tiles <= padded < problem.tiles + tiles,
        "a task is neither a part of an image nor whole ones": (
            problem.images > 1 and bool(each % tiles) and bool(tiles % each)
        ),
        "vectors do not divide the channels of a group": bool(problem.blocks // problem.groups % vectors),
        "chunks do not divide the channels": parameters["chunks"] not in problem.chunks(vectors),
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def points(op: Conv2d, cpu: Cpu) -> Iterator[dict[str, int]]:
    """Return every point that is worth a trial, the blockings of F(2x2) and F(4x4) that may be good."""
    if is_winograd(op, cpu):
        for size in SIZES:
            found = list(_blockings(problem_of(op, size, cpu), cpu))
            best = min(each.cycles for each in found)
            yield from (_parameters(size, each, cpu.lanes(op.sum_bits)) for each in found if each.cycles <= 2 * best)
