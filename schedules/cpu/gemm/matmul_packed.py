"""Matrix products with weights in panels, `P[N/t, K, t]`: GEMM at the speed of the multiply-adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import gcd
from types import ModuleType
from typing import Any

from tvm import s_tir

from relaxc.schedules.cpu.common.dot_product import STEPS, steps_of, tensorize
from relaxc.schedules.cpu.common.register_tile import blocks_around, flatten_rows
from relaxc.schedules.cpu.common.tile_registers import MATRIX
from relaxc.schedules.cpu.gemm import matrix_plan, open_plan, packed_compute, packed_plan
from relaxc.schedules.cpu.gemm.matrix_nest import by_registers
from relaxc.schedules.cpu.gemm.open_nest import open_nest
from relaxc.schedules.cpu.gemm.packed_plan import Layout
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import moves, tir
from relaxc.schedules.ir.types import LoopRV, PrimFunc, TirSchedule
from relaxc.schedules.ir.work import work_of, worth_parallel
from relaxc.schedules.operators import Matmul
from relaxc.schedules.plan import Plan
from relaxc.schedules.planned import Array, Planned
from relaxc.schedules.template import Declined, Parameters

__all__ = ["MatmulPacked"]

BLOCK = "matmul"


class MatmulPacked(Planned[Matmul]):
    """`C[m, n] = epilogue(sum over k of A[m, k] * P[n // t, k, n % t])`, any leading axes of A flattened into m.

        for task (block of m, panels) in parallel:
            for panel, for m in tiles of the block:        fetching the next panel meanwhile
                acc[rows, vectors][lanes] = 0
                for k: acc[m, n] += broadcast(A[m, k]) * P[panel, k, n]
                C[tile] = epilogue(acc)

    and where a block of A of full depth does not fit L2, with the depth in parts and the sums in memory between them:

        for task (panels) in parallel:
            acc[all m, panels] = 0
            for part of k, for panel, for m in tiles:      fetching this part of the next panel meanwhile
                for k in part: acc[m, n] += ...            in registers
            C = epilogue(acc)

    Parameters: `vectors` of a panel and the `padded` rows of the accumulator; `rows` of the register tile; `tiles` of
    rows in a task, whose part of A then stays in L2 while the panels pass (1 if the depth is split: then a task has all
    of them); `panels` in a task; `depth` of a part; `unroll` steps of k.
    `dtypes` are those of A, P and the sums. Operands of fewer bits than these are widened as they are loaded; with
    `dot` an instruction adds so many products of them to a sum, and P is `P[n // t, k // dot, n % t, k % dot]`. With
    `matrix` the sums are in `matrix * vectors` tile registers (AMX), and are stored once, before the epilogue.
    The tile and the blocking of the depth after Goto and van de Geijn, 'Anatomy of high-performance matrix
    multiplication' (2008), with the packing of the weights done at compile time and none of A.
    """

    name = "cpu.matmul_packed"
    version = 5
    layout = ("block", "vectors", "padded", STEPS, MATRIX)
    computes = Matmul
    dtypes = (
        ("float32", "float32", "float32"),
        ("bfloat16", "bfloat16", "float32"),
        ("float16", "float16", "float32"),
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int32"),
    )
    kernel = "matmul"
    repacks = True

    def refusal(self, operator: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """See `Planned`."""
        return self.wrong_dtypes(operator) or str(_plan_of(operator, parameters).refusal(operator, parameters, cpu))

    def default(self, operator: Matmul, cpu: Cpu) -> Mapping[str, int]:
        """See `Planned`: the better of the points by vectors and by tile registers."""
        if not operator.m:
            return open_plan.default(operator, cpu)
        by_tiles = None if self.wrong_dtypes(operator) else matrix_plan.default(operator, cpu)
        points = [packed_plan.default(operator, cpu), *([] if by_tiles is None else [by_tiles])]
        return min(points, key=lambda point: self.estimate(operator, point, cpu))

    def space(self, operator: Matmul, cpu: Cpu) -> Iterable[dict[str, int]]:
        """See `Planned`."""
        if self.wrong_dtypes(operator):
            return ()
        if not operator.m:
            return open_plan.points(operator, cpu)
        return chain(matrix_plan.points(operator, cpu), packed_plan.points(operator, cpu))

    def estimate(self, operator: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> float:
        """See `Planned`."""
        return float(_plan_of(operator, parameters).estimate(operator, parameters, cpu))

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """See `Planned`."""
        return packed_compute.computation(plan)

    def pack(self, plan: Plan, weight: Array) -> Array:
        """See `Planned`."""
        return packed_compute.pack(weight, _width(plan.parameters), steps_of(plan.parameters))

    def packed_shape(self, plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
        """See `Planned`."""
        (depth, columns), width, dot = shape, _width(plan.parameters), steps_of(plan.parameters)
        return -(-columns // width), depth // dot, width, *([dot] if dot > 1 else [])

    def emit(self, func: PrimFunc, operator: Matmul, parameters: Mapping[str, int], cpu: Cpu) -> PrimFunc | Declined:
        """See `Planned`."""
        found = blocks_around(func, BLOCK)
        if isinstance(found, Declined):
            return found
        before, product, after = found
        if any(load.source.same_as(block.body.buffer) for block in before for load in tir.loads(product)):
            return Declined("something that the product reads is computed before it")
        if len(after[-1].iter_vars) < 2:
            return Declined("its epilogue is not over the product's rows and columns")
        if not operator.m:
            return _of_any_rows(func, operator, parameters, cpu)
        layout = Layout.of(operator, parameters)
        dot = matrix_plan.instruction_of(operator, cpu) if MATRIX in parameters else layout.instruction(cpu)
        if layout.dot > 1 and dot is None:
            return Declined("the target has no instruction for its plan")
        return _schedule(func, layout, cpu, parameters)


def _plan_of(operator: Matmul, parameters: Parameters) -> ModuleType:
    """What divides a product so."""
    return matrix_plan if MATRIX in parameters else packed_plan if operator.m else open_plan


def _width(parameters: Parameters) -> int:
    """Columns of a panel."""
    return parameters["vectors"] * parameters["block"]


def _of_any_rows(func: PrimFunc, op: Matmul, chosen: Parameters, cpu: Cpu) -> PrimFunc | Declined:
    """The nest of a product whose rows are known at the call alone."""
    if open_plan.layout_of(op, chosen).dot > 1 and open_plan.layout_of(op, chosen).instruction(cpu) is None:
        return Declined("the target has no instruction for its plan")
    sch = s_tir.Schedule(func)
    before, _, after = blocks_around(func, BLOCK)  # type: ignore[misc]  # emit has seen them
    for block in (*before, *after[:-1]):
        sch.compute_inline(block.name_hint)
    inlined = sch.mod["main"]
    _, product, (last,) = blocks_around(inlined, BLOCK)  # type: ignore[misc]
    return open_nest(inlined, product, last, op, chosen, cpu)


def _schedule(func: PrimFunc, shape: Layout, cpu: Cpu, chosen: Parameters) -> PrimFunc:
    sch = s_tir.Schedule(func)
    before, _, after = blocks_around(func, BLOCK)  # type: ignore[misc]  # emit has seen them
    last = after[-1].name_hint
    for block in (*before, *after[:-1]):  # what stands before is of the epilogue too
        sch.compute_inline(block.name_hint)
    flatten_rows(sch, last, after[-1])
    parallel = worth_parallel(work_of(func).known_flops)
    if MATRIX in chosen:
        return _in_tile_registers(sch, last, shape, cpu, chosen, parallel)
    if chosen["depth"] == shape.steps:
        _one_pass(sch, last, shape, cpu, chosen, parallel)
    else:
        _in_parts(sch, last, shape, cpu, chosen, parallel)
    return sch.mod["main"]


def _in_tile_registers(
    sch: TirSchedule, last: str, shape: Layout, cpu: Cpu, chosen: Parameters, parallel: bool
) -> PrimFunc:
    """Sums of full depth in tile registers, stored for each tile, and the epilogue from there."""
    task, tile, _, vector, lane = _tiled(sch, last, shape, chosen, parallel)
    sch.unroll(vector)
    sch.vectorize(lane)
    *_, row, _, _, _ = sch.get_loops(BLOCK)
    dot = matrix_plan.instruction_of(shape.op, cpu)
    assert dot is not None, shape.op  # emit has seen it
    of_task, of_tile, of_row = (sch.get(loop).loop_var for loop in (task, tile, row))
    return by_registers(sch.mod["main"], of_task, of_tile, of_row, BLOCK, shape, dot, chosen)


def _tiled(
    sch: TirSchedule, last: str, shape: Layout, chosen: Parameters, parallel: bool
) -> tuple[LoopRV, LoopRV, LoopRV, LoopRV, LoopRV]:
    """The epilogue in tiles, with the sums computed at each: the loops over tasks, over a task's tiles, over a tile."""
    row, column = sch.get_loops(last)
    row, rows = sch.split(row, [None, chosen["rows"]])
    task, row = sch.split(row, [None, chosen["tiles"]])
    group, panel, column = sch.split(column, [None, chosen["panels"], shape.width])
    vector, lane = sch.split(column, [None, shape.lanes])
    sch.reorder(task, group, panel, row, rows, vector, lane)
    sch.compute_at(BLOCK, row, preserve_unit_loops=True)
    sch.set_scope(BLOCK, 0, "local")
    task = sch.fuse(task, group)
    if parallel:
        sch.parallel(task)
    return task, row, rows, vector, lane


def _one_pass(sch: TirSchedule, last: str, shape: Layout, cpu: Cpu, chosen: Parameters, parallel: bool) -> None:
    """Sums of full depth in registers, and the epilogue from there."""
    _, row, rows, vector, lane = _tiled(sch, last, shape, chosen, parallel)
    blocks = shape.rows // (chosen["rows"] * chosen["tiles"])
    if chosen["tiles"] > 1 and shape.panels * shape.panel_bytes > cpu.l2_bytes // (2 if blocks > 1 else 8):
        moves.prefetch_ahead(sch, row, shape.op.k * shape.width, shape.op.k * shape.width)
    dot = shape.instruction(cpu)
    *_, row, column, k = sch.get_loops(BLOCK)[: -1 if dot else None]
    vector_k, lane_k = sch.split(column, [None, shape.lanes])
    k, unrolled = sch.split(k, [None, chosen["unroll"]])
    sch.reorder(k, unrolled, row, vector_k, lane_k)
    _unroll(sch, (unrolled, row, vector_k, rows, vector), (lane,) if dot else (lane_k, lane))
    zeros = sch.decompose_reduction(BLOCK, k)
    if dot:
        sch.vectorize(sch.get_loops(zeros)[-1])
        tensorize(sch, lane_k, dot)


def _in_parts(sch: TirSchedule, last: str, shape: Layout, cpu: Cpu, chosen: Parameters, parallel: bool) -> None:
    """Sums of a part of the depth in registers, of the whole in the cache, then the epilogue."""
    row, column = sch.get_loops(last)
    task, column = sch.split(column, [None, chosen["panels"] * shape.width])
    sch.reorder(task, row, column)
    sch.compute_at(BLOCK, task, preserve_unit_loops=True)
    if parallel:
        sch.parallel(task)
    sch.vectorize(sch.split(column, [None, shape.lanes])[1])
    *_, row, column, k = sch.get_loops(BLOCK)
    # The accumulator has whole tiles: rows past the last are computed too, without a condition.
    tile, row = sch.split(row, [None, chosen["rows"]], disable_predication=True)
    panel, vector, lane = sch.split(column, [None, shape.width // shape.lanes, shape.lanes])
    steps = gcd(chosen["depth"], chosen["unroll"])
    part, k, unrolled = sch.split(k, [None, chosen["depth"] // steps, steps])
    sch.reorder(part, panel, tile, k, unrolled, row, vector, lane)
    _unroll(sch, (unrolled, row, vector), (lane,))
    sch.decompose_reduction(BLOCK, part)
    moves.accumulate_locally(sch, k)
    moves.prefetch_ahead(sch, tile, shape.op.k * shape.width, chosen["depth"] * shape.width)


def _unroll(sch: TirSchedule, loops: Sequence[LoopRV], lanes: Sequence[LoopRV]) -> None:
    for loop in loops:
        sch.unroll(loop)
    for loop in lanes:
        sch.vectorize(loop)
