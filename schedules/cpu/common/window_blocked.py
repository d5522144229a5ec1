"""What depthwise convolution and pooling share on `NCHW[v]c` and on NHWC: a window slid over an image, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call

from relaxc.schedules.cpu.common import at_call, window_plan
from relaxc.schedules.cpu.common.register_tile import blocks_around
from relaxc.schedules.cpu.common.window_plan import AS_NEEDED, MOST_TAPS, STAGED, Window
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import moves, tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import Expr, For, LoopRV, PrimFunc, SBlock, Stmt, TirSchedule, Var
from relaxc.schedules.ir.work import is_expensive, work_of
from relaxc.schedules.template import Declined, Parameters

__all__ = ["schedule", "unfit"]


def unfit(func: PrimFunc, window: Window) -> Declined | None:
    """Return why `func` has no such window with elementwise stages before and behind it; None if it has."""
    found = blocks_around(func, window.name)
    if isinstance(found, Declined):
        return found
    _, block, after = found
    if len(block.iter_vars) != (7 if window.blocked else 6):
        return Declined("its window is not over an image in the layout of its plan")
    if len(after[-1].iter_vars) != len(block.iter_vars) - 2:
        return Declined("its epilogue is not over the same axes")
    return None


def schedule(func: PrimFunc, window: Window, chosen: Parameters, cpu: Cpu) -> PrimFunc:
    """Return a PrimFunc that is not `unfit` as in the docstring of the templates that call this."""
    if window.columns:
        return _schedule(func, window, chosen, cpu)
    sizes = at_call.widths(chosen["columns"])
    cycles = [window_plan.tile_cycles(window, columns, cpu) for columns in sizes]
    width = blocks_around(func, window.name)[2][-1].iter_vars[-2].dom.extent  # type: ignore[index]  # it is not unfit
    made = [_schedule(func, window, {**chosen, "columns": columns}, cpu) for columns in sizes]
    return at_call.of_width(made, sizes, cycles, width)


def _schedule(func: PrimFunc, window: Window, chosen: Parameters, cpu: Cpu) -> PrimFunc:
    sch = s_tir.Schedule(func)
    before, block, after = blocks_around(func, window.name)  # type: ignore[misc]  # it is not unfit
    expensive = any(is_expensive(stage.body.value) for stage in after)
    for stage in [*before, *after[:-1]]:
        sch.compute_inline(stage.name_hint)
    last = after[-1].name_hint
    if window.blocked:
        batch, channel, row, column, lane = sch.get_loops(last)
    else:
        batch, row, column, channel = sch.get_loops(last)
        channel, lane = sch.split(channel, [None, window.lanes])
    strip, row = sch.split(row, [chosen["strips"], None])
    tile, column = sch.split(column, [None, chosen["columns"]], disable_predication=not window.columns)
    outer = [strip, batch, channel, row] if window.height else [strip, row, batch, channel]
    sch.reorder(*outer, tile, column, lane)
    if chosen["staged"] == STAGED or (chosen["staged"] == AS_NEEDED and expensive):
        _stage(sch, window.name, last, tile)
    else:
        sch.unroll(column)
    sch.vectorize(lane)
    sch.compute_at(window.name, tile, preserve_unit_loops=True)
    sch.set_scope(window.name, 0, "local")
    moves.parallelize(sch, outer, work_of(func).known_flops, cpu.cores)
    _accumulate(sch, window)
    if window.columns:
        sch.annotate(tile, "pragma_loop_partition_hint", True)
        return _skip_rows_outside(sch.mod["main"], f"{window.name}_update", block.init.value)
    moved = at_call.overlapped(sch.mod["main"], sch.get(tile).loop_var, chosen["columns"])
    skipping = _skip_rows_outside(moved, f"{window.name}_update", block.init.value)
    return _inside_apart(skipping, sch.get(tile).loop_var, window, chosen["columns"])


def _stage(sch: TirSchedule, name: str, last: str, tile: LoopRV) -> None:
    """The epilogue reads the accumulators from memory, in a loop: a function's code is there once, not per column."""
    accumulator = sch.get(sch.get_sblock(name)).writes[0].source
    reads = [region.source for region in sch.get(sch.get_sblock(last)).reads]
    index = next(i for i, buffer in enumerate(reads) if buffer.same_as(accumulator))
    copy = sch.cache_read(last, index, "local")
    sch.compute_at(copy, tile, preserve_unit_loops=True)
    *_, column, lane = sch.get_loops(copy)
    sch.unroll(column)
    sch.vectorize(lane)


def _accumulate(sch: TirSchedule, window: Window) -> None:
    *_, column, lane, r, q = sch.get_loops(window.name)
    if window.op.kernel[1] <= MOST_TAPS:
        sch.reorder(r, column, q, lane)
        sch.unroll(q)
    else:
        sch.reorder(r, q, column, lane)
    sch.unroll(column)
    sch.vectorize(lane)
    sch.decompose_reduction(window.name, r)


def _inside_apart(func: PrimFunc, tile: Var, window: Window, columns: int) -> PrimFunc:
    """Tiles that read no border do not ask where it is.

    for tile: acc += if_then_else(column is inside, A, 0)
    →   for tile: if all columns are inside: acc += A; else: acc += if_then_else(column is inside, A, 0)
    """

    def apart(loop: For) -> For:
        if not loop.loop_var.same_as(tile):
            return loop
        (update,) = (each for each in tir.collect(loop.body, s_tir.SBlockRealize) if each.block.name_hint == name)
        column, tap = (update.block.iter_vars[axis] for axis in (-4, -1))
        calls = [call for call in tir.collect(update.block.body, Call) if tir.is_if_then_else(call)]
        asked = [each for call in calls for each in tir.conjuncts(call.args[0])]
        if not asked:
            return loop
        inner = {each.loop_var: tir.zero(each.loop_var) for each in tir.collect(loop.body, tirx.For)}
        first = tir.substitute(update.iter_values[-4], inner)
        ends = [
            {column.var: first + at, tap.var: tir.index_const(taken)}
            for at in (0, columns - 1)
            for taken in (0, window.op.kernel[1] - 1)
        ]
        is_inside = tirx.all(*(tir.substitute(each, values) for each in asked for values in ends))
        plain = tvm_ffi.structural_map(loop.body, (Call, lambda call: _chosen(call, column.var)))
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, tirx.IfThenElse(is_inside, plain, loop.body),
            annotations=loop.annotations,
        )  # fmt: skip

    name = f"{window.name}_update"
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, apart)))


def _chosen(expr: Call, column: Var) -> Expr:
    """What a condition on `column` chooses where it holds; any other expression as it is."""
    asks = tir.is_if_then_else(expr) and bool(tir.uses(expr.args[0], [column]))
    return expr.args[1] if asks else expr


def _skip_rows_outside(func: PrimFunc, name: str, identity: Expr) -> PrimFunc:
    """Rows of padding are skipped where they would add the `identity`.

    for r: acc += if_then_else(row(r) and column(w), A, 0) * W   →   for r: if row(r): acc += if_then_else(column(w), …)
    """
    realize = next(r for r in block_realizes(func) if r.block.name_hint == name)
    values = {iv.var: value for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    axes = [axis.var for axis in realize.block.iter_vars]
    r, others = axes[-2], [*axes[:-5], *axes[-4:-2], axes[-1]]
    found: list[Expr] = []

    def inner(call: Expr) -> Expr:
        return (
            _without_rows(call, others, found)
            if tir.is_if_then_else(call) and tir.same(call.args[2], identity)
            else call
        )

    body = tvm_ffi.structural_map(realize.block.body, (Call, inner))
    if not found:
        return func
    condition = tir.substitute(tirx.all(*found), values)
    (window_row,) = tir.variables(values[r])

    def block_of(block: SBlock) -> SBlock:
        return _with_body(block, body) if block.name_hint == name else block

    def loop_of(loop: For) -> For:
        return _with_guard(loop, condition) if loop.loop_var.same_as(window_row) else loop

    return tvm_ffi.structural_map(func, [(s_tir.SBlock, block_of), (tirx.For, loop_of)])


def _without_rows(call: Expr, axes: Sequence[Var], found: list[Expr]) -> Expr:
    """An if_then_else without the conditions on rows, which use none of the other `axes` and go to `found`."""
    conditions = tir.conjuncts(call.args[0])
    others = [each for each in conditions if tir.uses(each, axes)]
    found.extend(each for each in conditions if not any(each.same_as(other) for other in others))
    return tirx.if_then_else(tirx.all(*others), *call.args[1:]) if others else call.args[1]


def _with_body(block: SBlock, body: Stmt) -> SBlock:
    axes, reads, writes = block.iter_vars, block.reads, block.writes
    return s_tir.SBlock(axes, reads, writes, block.name_hint, body, annotations=block.annotations)


def _with_guard(loop: For, condition: Expr) -> For:
    body = tirx.IfThenElse(condition, loop.body, None)
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)
