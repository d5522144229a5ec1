"""Winograd convolution on blocked layouts: a block of tiles is transformed, multiplied and transformed back in L2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir

from schedules.cpu.common.register_tile import blocks_around, divisors, tile_of, unrolled_steps
from schedules.cpu.conv.winograd_plan import MOST_CHUNKS, MOST_ROWS, MOST_TILES_IN_TASK, Problem, plan
from schedules.hardware import Cpu, cpu_of
from schedules.ir import analysis, moves, tir
from schedules.template import Choices, Declined, Parameters, Schedule, check

__all__ = ["Winograd"]

BLOCK = "winograd"
ROWS, DATA = "winograd_rows", "winograd_data"
PRODUCTS, COLUMNS, TILES = "winograd_products", "winograd_columns", "winograd_tiles"


@dataclass(frozen=True)
class _Shape:
    """The products `[a, b, tile, o, v]`, of which `padded` tiles are computed and `problem.tiles` kept.

    `vectors` is the width of a panel of the weights.
    """

    problem: Problem
    padded: int
    vectors: int

    @property
    def panels(self) -> int:
        """Panels of output channels."""
        return self.problem.blocks // self.vectors


class Winograd:
    """`C = epilogue(Winograd's convolution of A)` in the stages that `service.passes.kernels.winograd` writes.

        for task (chunk of o, block of tiles) in parallel:
            for i, tile: V[i, a, b, tile, :] = B^T A[tile] B              # into L2
            for panel of o:
                for a, b, rows of tiles:
                    acc[rows, vectors][v] = 0
                    for i, iv: acc[tile, o] += broadcast(V[i, a, b, tile, iv]) * U[panel, a, b, i, o]
                    M[a, b, tile, o] = acc
                for tile, o: C[tile] = epilogue(A^T M[:, :, tile, o] A)

    Neither V nor M leaves L2, and U is read from start to end, the next product's part of it fetched during this one.
    Parameters: `tasks` over the tiles, `chunks` of o that are tasks of their own, at most `rows` of the register tile.
    After Lavin and Gray, 'Fast algorithms for convolutional neural networks' (2016), with the blocking of Jia et al.,
    'Optimizing N-dimensional, Winograd-based convolution for manycore CPUs' (2018).
    """

    name = "cpu.winograd"
    version = 2

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.template.Rule`."""
        cpu = cpu_of(target)
        shape = _match(func)
        if isinstance(shape, Declined):
            return shape
        chosen = _default(shape, cpu) if parameters is None else dict(parameters)
        if parameters is not None:
            check(chosen, _choices(shape, cpu))
        return Schedule(_schedule(func, shape, chosen), chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `schedules.template.Rule`."""
        shape = _match(func)
        return shape if isinstance(shape, Declined) else _choices(shape, cpu_of(target))


def _match(func: Any) -> _Shape | Declined:
    found = blocks_around(func, BLOCK)
    if isinstance(found, Declined):
        return found
    before, block, after = found
    names = [each.name_hint for each in (*before, *after)]
    if names[:5] != [ROWS, DATA, PRODUCTS, COLUMNS, TILES]:
        return Declined("it is not the stages of Winograd's convolution")
    points, _, padded, blocks, lanes, in_blocks, in_lanes = (tir.as_int(iv.dom.extent) or 0 for iv in block.iter_vars)
    batch, _, height, width, *rest = (tir.as_int(iv.dom.extent) or 0 for iv in after[-1].iter_vars)
    if len(rest) != 1 or not batch:
        return Declined("its epilogue is not over the blocked result of known size")
    size = points - 2
    tiles = batch * -(-height // size) * -(-width // size)
    inside = (before[1].body.buffer, block.body.buffer)
    (weight,) = [
        load.source for load in tir.loads(block.body.value) if not any(load.source.same_as(other) for other in inside)
    ]
    panels = int(weight.shape[0])
    return _Shape(Problem(size, tiles, in_blocks * in_lanes, blocks, lanes, batch), padded, blocks // panels)


def _choices(shape: _Shape, cpu: Cpu) -> Choices:
    most = (cpu.vector_registers - 1 - shape.vectors) // shape.vectors
    return {
        "rows": tuple(range(1, min(MOST_ROWS, most, shape.padded) + 1)),
        "tasks": tuple(t for t in divisors(shape.padded, shape.padded) if shape.padded // t <= MOST_TILES_IN_TASK),
        "chunks": divisors(shape.panels, MOST_CHUNKS),
    }


def _default(shape: _Shape, cpu: Cpu) -> dict[str, int]:
    best = plan(shape.problem, cpu, vectors=shape.vectors, padded=shape.padded)
    return {"rows": best.rows, "tasks": best.tasks, "chunks": best.chunks}


def _schedule(func: Any, shape: _Shape, chosen: Parameters) -> Any:
    work = analysis.work_of(func).known_flops
    # Unchecked: TVM takes the image, row and column of a tile, quotients and remainders of one number, for bindings
    # that may write an element twice.
    sch = s_tir.Schedule(func, enable_check=False)
    _, _, after = blocks_around(func, BLOCK)  # type: ignore[misc]  # _match took it
    last = after[-1].name_hint
    for block in after[3:-1]:
        sch.compute_inline(block.name_hint)
    size, tiles = shape.problem.size, shape.padded // chosen["tasks"]
    batch, channel, row, column, lane = sch.get_loops(last)
    chunk, panel, vector = sch.split(channel, [chosen["chunks"], None, shape.vectors])
    row, y = sch.split(row, [None, size])
    column, x = sch.split(column, [None, size])
    sch.reorder(batch, row, column, chunk, panel, vector, y, x, lane)
    task, tile = sch.split(sch.fuse(batch, row, column), [None, tiles])
    sch.reorder(chunk, task, panel, tile, vector, y, x, lane)
    task = sch.fuse(chunk, task)
    sch.vectorize(lane)
    if not analysis.is_expensive(after[-1].body.value):
        sch.unroll(x)
    _transform_back(sch, vector)
    _multiply(sch, panel, tile_of(tiles, chosen["rows"]), shape)
    _transform(sch, task)
    if analysis.worth_parallel(work):
        sch.parallel(task)
    return sch.mod["main"]


def _transform_back(sch: Any, vector: Any) -> None:
    """One vector's tile in registers, as far as they go, and on the stack."""
    for name in (TILES, COLUMNS):
        sch.compute_at(name, vector, preserve_unit_loops=True)
        sch.set_scope(name, 0, "local")
        *_, y, x, lane = sch.get_loops(name)
        if name == COLUMNS:
            y, x = x, y
            sch.reorder(y, x, lane)
        sch.unroll(x)
        sch.vectorize(lane)


def _multiply(sch: Any, panel: Any, rows: int, shape: _Shape) -> None:
    """M of a panel, in register tiles of `rows` tiles."""
    sch.compute_at(PRODUCTS, panel, preserve_unit_loops=True)
    *_, tile, vector, lane = sch.get_loops(PRODUCTS)
    tile, row = sch.split(tile, [None, rows])
    sch.compute_at(BLOCK, tile, preserve_unit_loops=True)
    sch.set_scope(BLOCK, 0, "local")
    sch.unroll(row)
    sch.unroll(vector)
    sch.vectorize(lane)
    next_product = shape.problem.depth * shape.vectors * shape.problem.lanes
    moves.prefetch_ahead(sch, tile, next_product, next_product)
    *_, row, vector, lane, i, iv = sch.get_loops(BLOCK)
    iv, step = sch.split(iv, [None, unrolled_steps(shape.problem.lanes)])
    sch.reorder(i, iv, step, row, vector, lane)
    for loop in (step, row, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.decompose_reduction(BLOCK, i)


def _transform(sch: Any, task: Any) -> None:
    """V of a task, for one vector of channels of a tile after the other."""
    sch.compute_at(DATA, task, preserve_unit_loops=True)
    *_, i, a, b, tile, lane = sch.get_loops(DATA)
    sch.reorder(i, tile, a, b, lane)
    sch.compute_at(ROWS, tile, preserve_unit_loops=True)
    sch.set_scope(ROWS, 0, "local")
    sch.unroll(b)
    sch.vectorize(lane)
    *_, a, x, lane = sch.get_loops(ROWS)
    sch.reorder(x, a, lane)
    sch.unroll(a)
    sch.vectorize(lane)
