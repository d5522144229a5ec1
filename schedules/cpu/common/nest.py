"""Schedules of one loop nest on a CPU: elementwise, reduced along rows, or reduced over columns."""

from __future__ import annotations

from tvm import ir, s_tir

from relaxc.schedules.cpu.rows.partial_sums import PARTIAL, row_form
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import analysis, moves, tir
from relaxc.schedules.ir.blocks import block_names
from relaxc.schedules.ir.dtypes import dtype_bits, dtype_bytes
from relaxc.schedules.ir.types import LoopRV, PrimFunc, SBlock, Size, TirSchedule
from relaxc.schedules.ir.work import expression_size, is_expensive, iterations, worth_parallel
from relaxc.schedules.strict import made_up_for

__all__ = [
    "TASKS_PER_CORE",
    "contiguous_suffix",
    "finish_reduction",
    "lanes_of",
    "rows_are_contiguous",
    "schedule_nests",
    "vectorize_partial",
    "work_of_nest",
]

TASKS_PER_CORE = 4
LINE_BYTES = 64
"""A cache line: a block of this many bytes is transposed, whose lines are then used whole."""

_CHUNK_VECTORS = 16
"""Vectors in a task of an axis whose length is symbolic."""

_NARROWEST_BITS = 16
"""Bits of an element under which vectors get no more lanes: bytes are computed in wider types, a register each."""


def schedule_nests(func: PrimFunc, cpu: Cpu, *, careful: bool = False) -> PrimFunc:
    """Return `func` with each of its loop nests scheduled on its own, and what is no plain nest left as it is.

    With `careful`, a nest that TVM refuses a step on stays as it was; else its ScheduleError goes up.
    """
    for nest in analysis.nests(func):
        if nest is not None and analysis.is_reduction(nest.block) and rows_are_contiguous(nest.block):
            func = row_form(func, nest.block.name_hint, lanes_of(nest.block, cpu)) or func
    sch = s_tir.Schedule(func)
    for nest in analysis.nests(func):
        if nest is None or not nest.loops or nest.block.name_hint.endswith(PARTIAL):
            continue
        attempt = sch.copy() if careful else sch
        try:
            _schedule_nest(attempt, nest, cpu)
        except s_tir.ScheduleError as error:
            if not careful:
                raise
            made_up_for(f"the nest of {nest.block.name_hint} stays as it was: {error}")
            continue
        sch = attempt
    return sch.mod["main"]


def _schedule_nest(sch: TirSchedule, nest: analysis.Nest, cpu: Cpu) -> None:
    name = nest.block.name_hint
    if analysis.is_injective(nest.block):
        _spatial(sch, name, nest, cpu)
    elif analysis.is_reduction(nest.block):
        if name + PARTIAL in block_names(sch.mod["main"]) or rows_are_contiguous(nest.block):
            _rows(sch, name, nest, cpu)
        else:
            _columns(sch, name, nest, cpu)


def _spatial(sch: TirSchedule, name: str, nest: analysis.Nest, cpu: Cpu) -> None:
    """for outer in parallel: for i: for l in vectorized: out[outer, i, l] = f(…)"""
    loops = sch.get_loops(name)
    suffix, contiguous = contiguous_suffix(nest.block)
    across = None if contiguous else _axis_read_along(nest.block)
    if across is not None:
        _transposed(sch, loops, across, nest.block, cpu)
        return
    inner = moves.fuse_all(sch, loops[len(loops) - suffix :])
    outer = list(loops[: len(loops) - suffix])
    lanes = lanes_of(nest.block, cpu)
    work = work_of_nest(nest.block)
    if _few(nest.extents[: len(loops) - suffix], cpu) and worth_parallel(work):
        total = tir.as_int(sch.get(inner).extent)
        chunk = _CHUNK_VECTORS * lanes if total is None else _chunk(total, lanes, TASKS_PER_CORE * cpu.cores)
        if total is None or chunk < total:
            part, inner = sch.split(inner, [None, chunk])
            outer.append(part)
    moves.parallelize(sch, outer, work, cpu.cores)
    if contiguous:
        moves.vectorize_inner(sch, inner, lanes)


def _axis_read_along(block: SBlock) -> int | None:
    """The axis, not the last, along which a load walks through memory: the block transposes. None if there is none."""
    extents = {iv.var: iv.dom.extent for iv in block.iter_vars}
    for load in tir.loads(block.body.value):
        position = tir.flatten(load.indices, load.source.shape)
        for index, iv in enumerate(block.iter_vars[:-1]):
            extent = tir.as_int(iv.dom.extent)
            if extent is not None and extent < _transposed_block(block):
                continue
            if tir.uses(position, [iv.var]) and tir.steps_by_one(position, iv.var, extents):
                return index
    return None


def _transposed_block(block: SBlock) -> int:
    """Elements of the result in a cache line."""
    return LINE_BYTES // dtype_bytes(str(block.body.buffer.dtype))


def _transposed(sch: TirSchedule, loops: list[LoopRV], across: int, block: SBlock, cpu: Cpu) -> None:
    """for blocks in parallel: for a, l in a line: out[a, l] = x[l, a]; a block's cache lines are used whole"""
    line = _transposed_block(block)
    tile, a = sch.split(loops[across], [None, line])
    last, lane = sch.split(loops[-1], [None, line])
    outer = [*loops[:across], tile, *loops[across + 1 : -1], last]
    sch.reorder(*outer, a, lane)
    moves.parallelize(sch, outer, work_of_nest(block), cpu.cores)


def _chunk(total: int, lanes: int, parts: int) -> int:
    """Elements of a task: whole vectors, and a divisor of `total` where one is near, so that there is no tail."""
    even = -(-total // parts // lanes) * lanes
    for candidate in range(even, 2 * even + 1, lanes):
        if total % candidate == 0:
            return candidate
    return even


def _few(extents: list[Size], cpu: Cpu) -> bool:
    total = tir.product(extents)
    return isinstance(total, int) and total < TASKS_PER_CORE * cpu.cores


def _rows(sch: TirSchedule, name: str, nest: analysis.Nest, cpu: Cpu) -> None:
    """for row in parallel: s[row] = reduce over k of x[row, k], the lanes of `row_form` in one vector"""
    spatial = nest.spatial_loops(sch, name)
    partial = name + PARTIAL if name + PARTIAL in block_names(sch.mod["main"]) else None
    if spatial:
        row = moves.parallelize(sch, spatial, work_of_nest(nest.block), cpu.cores)
        if partial is not None:
            sch.compute_at(partial, row, preserve_unit_loops=True)
    if partial is not None:
        vectorize_partial(sch, partial)
    finish_reduction(sch, name)


def vectorize_partial(sch: TirSchedule, partial: str) -> None:
    """Keep the partial results of `row_form` in one vector register; they are its result's last dim."""
    block = sch.get(sch.get_sblock(partial))
    lane_axis, (step_axis,) = block.body.indices[-1], [iv.var for iv in block.iter_vars if analysis.reduces(iv)]
    lane, step = moves.loop_of(sch, partial, lane_axis), moves.loop_of(sch, partial, step_axis)
    sch.reorder(step, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(partial, step)


def finish_reduction(sch: TirSchedule, name: str) -> None:
    """Move the initial value of a reduction before its outermost reduction loop."""
    axes = [iv.var for iv in sch.get(sch.get_sblock(name)).iter_vars if analysis.reduces(iv)]
    loops = [moves.loop_of(sch, name, axis) for axis in axes]
    order = [sch.get(loop) for loop in sch.get_loops(name)]
    first = min(loops, key=lambda loop: next(i for i, other in enumerate(order) if other.same_as(sch.get(loop))))
    sch.decompose_reduction(name, first)


def _columns(sch: TirSchedule, name: str, nest: analysis.Nest, cpu: Cpu) -> None:
    """for outer, column block in parallel: for k: for vectors v: acc[v, l] += x[k, v, l]; out = acc"""
    spatial, reduction = nest.spatial_loops(sch, name), nest.reduction_loops(sch, name)
    if not spatial:
        return
    axes = [iv for iv in nest.block.iter_vars if not analysis.reduces(iv)]
    contiguous = analysis.is_contiguous_over(nest.block, [axes[-1].var])
    sch.reorder(*spatial, *reduction)
    outer, column = list(spatial[:-1]), spatial[-1]
    lane = None
    if contiguous:
        lanes = lanes_of(nest.block, cpu)
        extent = tir.as_int(sch.get(column).extent)
        if extent is not None and extent > lanes:
            vectors = _vectors_of_columns(extent, lanes, tir.product([iv.dom.extent for iv in axes[:-1]]), cpu)
            column, vector, lane = sch.split(column, [None, vectors, lanes])
            outer.append(column)
            sch.reorder(*reduction, vector)
            sch.unroll(vector)
        elif extent is None:
            column, lane = sch.split(column, [None, lanes])
            outer.append(column)
        else:
            lane = column
        sch.reorder(*reduction, lane)
    else:
        outer.append(column)
    task = moves.parallelize(sch, outer, work_of_nest(nest.block), cpu.cores)
    if lane is not None:
        sch.vectorize(lane)
    if task is not None or lane is not None:
        sch.decompose_reduction(name, reduction[0])


def _vectors_of_columns(extent: int, lanes: int, outer: Size, cpu: Cpu) -> int:
    """Vectors of a block of columns: as many cache lines in a row, so that memory is not read a line a page."""
    tasks = extent * outer // (lanes * TASKS_PER_CORE * cpu.cores) if isinstance(outer, int) else 8
    fitting = [count for count in (8, 4, 2) if extent % (count * lanes) == 0 and count <= tasks]
    return fitting[0] if fitting else 1


def work_of_nest(block: SBlock) -> int | None:
    count = iterations(block)
    return count * max(1, expression_size(block.body)) if isinstance(count, int) else None


def lanes_of(block: SBlock, cpu: Cpu) -> int:
    """Return lanes such that the widest element that the block loads or stores fills one vector."""
    buffers = [block.body.buffer, *(load.source for load in tir.loads(block.body.value))]
    bits = max(dtype_bits(str(buffer.dtype)) for buffer in buffers)
    return cpu.lanes(max(bits, _NARROWEST_BITS))


def rows_are_contiguous(block: SBlock) -> bool:
    """Return whether the innermost reduction axis, and not the last axis of the result, walks through memory."""
    reduction = [iv.var for iv in block.iter_vars if analysis.reduces(iv)]
    spatial = [iv.var for iv in block.iter_vars if not analysis.reduces(iv) and tir.as_int(iv.dom.extent) != 1]
    if spatial and analysis.is_contiguous_over(block, spatial[-1:]):
        return False
    return analysis.is_contiguous_over(block, reduction[-1:])


def contiguous_suffix(block: SBlock, first: int = 0) -> tuple[int, bool]:
    """Return how many of the last axes (but those before `first`) can be one flat loop, and whether it is unit-stride.

    At least 1: where no access is unit-stride, the last axis with False.
    """
    axes = [iv.var for iv in block.iter_vars]
    best = 0
    for count in range(1, len(axes) - first + 1):
        if not analysis.is_contiguous_over(block, axes[len(axes) - count :]):
            break
        best = count
    return (best, True) if best else (1, _computes_enough(block))


def _computes_enough(block: SBlock) -> bool:
    """Vectors pay in spite of gathers where functions are evaluated."""
    return len(tir.collect(block.body.value, ir.Call)) > 2 and is_expensive(block.body.value)
