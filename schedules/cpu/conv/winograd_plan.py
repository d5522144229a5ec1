"""How many cycles a Winograd or a direct 3x3 convolution takes, and the blocking with which it takes fewest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from schedules.cpu.common.register_tile import divisors
from schedules.hardware import Cpu

__all__ = ["Plan", "Problem", "direct_cycles", "plan"]

MOST_ROWS = 28
MOST_TILES_IN_TASK = 128
MOST_CHUNKS = 16
GEMM_EFFICIENCY = 0.9
DIRECT_EFFICIENCY = 0.8
TRANSFORM_CYCLES = 6
"""Cycles to transform one vector of a tile, its way into L2 included: 2 of arithmetic, the rest stores and misses
(measured: 5 to 9, on Sapphire Rapids)."""
TILE_OVERHEAD = 20
L2_BYTES_PER_CYCLE = 24
"""What a core reads of its L2 beside its arithmetic: half of the 48 measured without (Sapphire Rapids)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`tiles` of `size` x `size` outputs of a 3x3 convolution, from `depth` channels to `blocks` of `lanes`.

    They are of `images` of the same size.
    """

    size: int
    tiles: int
    depth: int
    blocks: int
    lanes: int
    images: int = 1

    @property
    def points(self) -> int:
        """The products of matrices: (size + 2)^2."""
        return (self.size + 2) ** 2

    @property
    def weight_bytes(self) -> int:
        """Of the transformed weights."""
        return self.points * self.depth * self.blocks * self.lanes * 4


@dataclass(frozen=True, slots=True)
class Plan:
    """The register tile (`rows` tiles by `vectors` of output channels), the `tiles` of a task, of which `tasks` cover
    all, and the `chunks` of output channels that are tasks of their own; `cycles` is the estimate."""

    rows: int
    vectors: int
    tiles: int
    tasks: int
    chunks: int
    cycles: float


@cache
def plan(problem: Problem, cpu: Cpu, *, vectors: int | None = None, padded: int | None = None) -> Plan:
    """The plan of the fewest cycles; with `vectors` and `padded` for weights and tiles that are laid out already."""
    return min(_plans(problem, cpu, vectors, padded), key=lambda found: (found.cycles, found.tiles, found.chunks))


def _plans(problem: Problem, cpu: Cpu, vectors: int | None, padded: int | None) -> Iterator[Plan]:
    for width in divisors(problem.blocks, 4) if vectors is None else (vectors,):
        for rows in range(1, min(MOST_ROWS, problem.tiles) + 1):
            if rows * width + width + 1 > cpu.vector_registers:
                break
            for tiles, tasks in _tasks(problem, rows, padded):
                for chunks in divisors(problem.blocks // width, MOST_CHUNKS):
                    cycles = _cycles(problem, cpu, rows, width, tiles, tasks, chunks)
                    yield Plan(rows, width, tiles, tasks, chunks, cycles)


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
    step = max(rows * vectors / cpu.fma_per_cycle, (rows + vectors) / cpu.loads_per_cycle, cpu.fma_latency)
    if depth * vectors * problem.lanes * 4 > cpu.l1_bytes // 2:
        step = max(step, (vectors * problem.lanes + rows) * 4 / L2_BYTES_PER_CYCLE)
    tile = depth * step / GEMM_EFFICIENCY + 2 * rows * vectors + TILE_OVERHEAD
    products = points * panels * tiles // rows * tile
    transforms = TRANSFORM_CYCLES * points * tiles * (depth // problem.lanes + panels * vectors)
    data = points * depth * tiles * 4
    images = problem.size**2 * tiles * (depth + panels * vectors * problem.lanes) * 4
    held = data + points * tiles * vectors * problem.lanes * 4 + images
    weights = problem.weight_bytes // chunks
    own_chunks = -(-chunks // cpu.cores) if chunks >= cpu.cores else 1
    again = 0 if held + weights <= cpu.l2_bytes else weights * (rounds - own_chunks) + data * rounds
    if held + weights // panels // points > cpu.l2_bytes:
        again += rounds * panels * data
    half_hidden = again / cpu.l3_bytes_per_cycle + rounds * weights / L2_BYTES_PER_CYCLE
    arriving = weights * own_chunks / cpu.memory_bytes_per_cycle + half_hidden / 2
    return rounds * (products + transforms) + arriving


def direct_cycles(pixels: int, depth: int, blocks: int, lanes: int, cpu: Cpu) -> float:
    """The estimate of the same kind for `cpu.conv2d_blocked`."""
    products = 9 * pixels * depth * blocks / cpu.fma_per_cycle / cpu.cores / DIRECT_EFFICIENCY
    stream = 9 * depth * blocks * lanes * 4 / cpu.cores / cpu.memory_bytes_per_cycle
    return products + stream
