"""Winograd convolution on blocked layouts: a block of tiles is transformed, multiplied and transformed back in L2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from relaxc.schedules.cpu.common.register_tile import blocks_around, divisors, unrolled_steps
from relaxc.schedules.cpu.conv import winograd_compute, winograd_plan
from relaxc.schedules.cpu.conv.winograd_plan import Problem
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import moves
from relaxc.schedules.ir.types import LoopRV, PrimFunc, TirSchedule
from relaxc.schedules.ir.unchecked import unchecked_schedule
from relaxc.schedules.ir.work import is_expensive, work_of, worth_parallel
from relaxc.schedules.operators import Conv2d
from relaxc.schedules.plan import Plan
from relaxc.schedules.planned import Array, Planned
from relaxc.schedules.template import Declined, Parameters

__all__ = ["Winograd"]

BLOCK = "winograd"
ROWS, DATA = "winograd_rows", "winograd_data"
PRODUCTS, COLUMNS, TILES = "winograd_products", "winograd_columns", "winograd_tiles"


@dataclass(frozen=True)
class _Shape:
    """The products `[a, b, tile, o, v]`, of which `padded` tiles are computed and `problem.tiles` kept."""

    problem: Problem
    padded: int
    vectors: int


class Winograd(Planned[Conv2d]):
    """`C = epilogue(Winograd's convolution of A)` in the stages that `winograd_compute` writes.

        for task (chunk of o, block of tiles) in parallel:
            for i, tile: V[i, a, b, tile, :] = B^T A[tile] B              # into L2
            for panel of o:
                for a, b, rows of tiles:
                    acc[rows, vectors][v] = 0
                    for i, iv: acc[tile, o] += broadcast(V[i, a, b, tile, iv]) * U[panel, a, b, i, o]
                    M[a, b, tile, o] = acc
                for tile, o: C[tile] = epilogue(A^T M[:, :, tile, o] A)

    Neither V nor M leaves L2, and U is read from start to end, the next product's part of it fetched during this one.
    Parameters, beside those of the layout: `tasks` over the tiles, `chunks` of o that are tasks of their own, `rows` of
    the register tile.
    After Lavin and Gray, 'Fast algorithms for convolutional neural networks' (2016), with the blocking of Jia et al.,
    'Optimizing N-dimensional, Winograd-based convolution for manycore CPUs' (2018).
    """

    name = "cpu.winograd"
    version = 3
    layout = ("block", "size", "vectors", "padded")
    computes = Conv2d
    dtypes = (("float32", "float32", "float32"),)
    kernel = "winograd_conv2d"
    plans = winograd_plan
    repacks = enlarges = decides = True

    def default(self, operator: Conv2d, cpu: Cpu) -> Mapping[str, int] | None:
        """See `Planned`: none where the direct method is estimated to be faster."""
        takes = winograd_plan.is_winograd(operator, cpu) and not self.wrong_dtypes(operator)
        return winograd_plan.default(operator, cpu) if takes else None

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """See `Planned`."""
        return partial(winograd_compute.conv2d, plan=plan)

    def pack(self, plan: Plan, weight: Array) -> Array:
        """See `Planned`: the weights are transformed too."""
        size, lanes, vectors = (plan.parameters[name] for name in ("size", "block", "vectors"))
        return winograd_compute.transform_weight(weight, size, lanes, vectors)

    def packed_shape(self, plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
        """See `Planned`."""
        points, lanes, vectors = plan.parameters["size"] + 2, plan.parameters["block"], plan.parameters["vectors"]
        panels, depth = -(-shape[0] // lanes) // vectors, -(-shape[1] // lanes)
        return panels, points, points, depth * lanes, vectors * lanes

    def emit(self, func: PrimFunc, operator: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> PrimFunc | Declined:
        """See `Planned`."""
        found = blocks_around(func, BLOCK)
        if isinstance(found, Declined):
            return found
        before, _, after = found
        names = [each.name_hint for each in (*before, *after)]
        if names[:5] != [ROWS, DATA, PRODUCTS, COLUMNS, TILES] or len(after[-1].iter_vars) != 5:
            return Declined("it is not the stages of Winograd's convolution")
        problem = winograd_plan.problem_of(operator, parameters["size"], cpu)
        return _schedule(func, _Shape(problem, parameters["padded"], parameters["vectors"]), parameters)


def _schedule(func: PrimFunc, shape: _Shape, chosen: Parameters) -> PrimFunc:
    work = work_of(func).known_flops
    sch = unchecked_schedule(func, Winograd.name)
    _, _, after = blocks_around(func, BLOCK)  # type: ignore[misc]  # emit has seen them
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
    if not is_expensive(after[-1].body.value):
        sch.unroll(x)
    _transform_back(sch, vector)
    _multiply(sch, panel, divisors(tiles, chosen["rows"])[-1], shape)
    _transform(sch, task)
    if worth_parallel(work):
        sch.parallel(task)
    return sch.mod["main"]


def _transform_back(sch: TirSchedule, vector: LoopRV) -> None:
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


def _multiply(sch: TirSchedule, panel: LoopRV, rows: int, shape: _Shape) -> None:
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


def _transform(sch: TirSchedule, task: LoopRV) -> None:
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
