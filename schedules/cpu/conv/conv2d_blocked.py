"""Direct convolution on blocked layouts, `NCHW[v]c` and `OIHW[i]i[v]o`: no gathering, no tails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tvm import s_tir

from relaxc.schedules.cpu.common import at_call
from relaxc.schedules.cpu.common.dot_product import STEPS, steps_of, tensorize
from relaxc.schedules.cpu.common.register_tile import LOOPED, blocks_around
from relaxc.schedules.cpu.conv import blocked_compute, blocked_plan
from relaxc.schedules.cpu.conv.blocked_plan import Layout
from relaxc.schedules.dots import Dot
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import moves, tir
from relaxc.schedules.ir.types import LoopRV, PrimFunc, TirSchedule
from relaxc.schedules.operators import Conv2d
from relaxc.schedules.plan import Plan
from relaxc.schedules.planned import Array, Planned
from relaxc.schedules.template import Declined, Parameters

__all__ = ["Conv2dBlocked"]

BLOCK = "conv2d"


class Conv2dBlocked(Planned[Conv2d]):
    """`C[n, o, h, w, ov] = epilogue(sum of A[n, i, h*s + r, w*s + q, iv] * W[o, i, r, q, iv, ov])`.

        for task (n, chunk of o, block of rows) in parallel:
            pad the task's rows of A                        # only where there is padding
            for o, h, w in tiles:                           # fetching the weights of the next o meanwhile
                acc[rows, vectors][v] = 0
                for i, r, q, iv: acc[w, o] += broadcast(A[…, w*s + q, iv]) * W[o, i, r, q, iv]
                C[tile] = epilogue(acc)

    With `dot`, the operands are multiplied by an instruction that takes so many channels, and the weights are
    `W[o, i, r, q, iv // dot, ov, iv % dot]`. Parameters, beside those of the layout: `rows` (columns w of the register
    tile) and `vectors` (channel blocks of it), `height` (rows h of a task, or tiles where h is folded into w), `chunks`
    (parts of o that are tasks of their own), `unroll` steps of iv, `prefetch` (0 or 1), and `looped` (1) where the
    tiles of a small image are a loop; without it they are unrolled.
    After Georganas et al., 'Anatomy of high-performance deep learning convolutions on SIMD architectures' (2018).
    """

    name = "cpu.conv2d_blocked"
    version = 5
    layout = ("block", "flat", "padded", STEPS)
    computes = Conv2d
    dtypes = (
        ("float32", "float32", "float32"),
        ("bfloat16", "bfloat16", "float32"),
        ("uint8", "int8", "int32"),
        ("int8", "int8", "int32"),
    )
    kernel = "conv2d"
    plans = blocked_plan
    repacks = True

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """See `Planned`."""
        return partial(blocked_compute.conv2d, plan=plan)

    def pack(self, plan: Plan, weight: Array) -> Array:
        """See `Planned`."""
        parameters = plan.parameters
        return blocked_compute.pack_weight(weight, _in_lanes(plan), parameters["block"], steps_of(parameters))

    def packed_shape(self, plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
        """See `Planned`."""
        return blocked_compute.packed_shape(shape, _in_lanes(plan), plan.parameters["block"], steps_of(plan.parameters))

    def emit(self, func: PrimFunc, operator: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> PrimFunc | Declined:
        """See `Planned`."""
        found = blocks_around(func, BLOCK)
        if isinstance(found, Declined):
            return found
        if len(found[2][-1].iter_vars) != 5:
            return Declined("its epilogue is not over the blocked result")
        layout = Layout.of(operator, parameters)
        dot = layout.instruction(cpu)
        if layout.dot > 1 and dot is None:
            return Declined("the target has no instruction for its plan")
        if not layout.at_call[1]:
            return _schedule(func, layout, parameters, dot, cpu.cores)
        return _at_call(func, layout, parameters, cpu)


def _in_lanes(plan: Plan) -> int:
    """Channels of the image in the innermost axis of the weights: those that an instruction takes where it has few."""
    is_plain = isinstance(plan.operator, Conv2d) and plan.operator.plain
    return steps_of(plan.parameters) if is_plain else plan.parameters["block"]


def _at_call(func: PrimFunc, shape: Layout, chosen: Parameters, cpu: Cpu) -> PrimFunc:
    """The kernel for images of unknown width: of several register tiles it takes the one that is fastest for it."""
    dot, vectors = shape.instruction(cpu), chosen["vectors"]
    width = blocks_around(func, BLOCK)[2][-1].iter_vars[3].dom.extent  # type: ignore[index]  # emit has seen them
    sizes = at_call.widths(chosen["rows"])
    cycles = [blocked_plan.tile_cycles(shape.op, rows, vectors, cpu) for rows in sizes]
    made = [_schedule(func, shape, {**chosen, "rows": rows}, dot, cpu.cores) for rows in sizes]
    return at_call.of_width(made, sizes, cycles, width)


def _schedule(func: PrimFunc, shape: Layout, chosen: Parameters, dot: Dot | None, cores: int) -> PrimFunc:
    sch = s_tir.Schedule(func)
    before, _, after = blocks_around(func, BLOCK)  # type: ignore[misc]  # emit has seen them
    last = after[-1].name_hint
    for block in after[:-1]:
        sch.compute_inline(block.name_hint)
    if shape.folded:
        width = tir.as_int(after[-1].iter_vars[3].dom.extent)
        sch.transform_block_layout(last, lambda n, o, h, w, v: (n, o, h * width + w, v))
        batch, channel, column, lane = sch.get_loops(last)
    else:
        batch, channel, row, column, lane = sch.get_loops(last)
    chunk, channel, channels = sch.split(channel, [chosen["chunks"], None, chosen["vectors"]])
    rows_at_call, columns_at_call = shape.at_call
    column, columns = sch.split(column, [None, chosen["rows"]], disable_predication=columns_at_call)
    if shape.folded:
        task, column = sch.split(column, [None, chosen["height"]])
        sch.reorder(batch, chunk, task, channel, column, channels, columns, lane)
    else:
        task, row = sch.split(row, [None, chosen["height"]], disable_predication=rows_at_call)
        sch.reorder(batch, chunk, task, channel, row, column, channels, columns, lane)
    sch.compute_at(BLOCK, column, preserve_unit_loops=True)
    sch.set_scope(BLOCK, 0, "local")
    _prologue(sch, [block.name_hint for block in before], task)
    loops_inside = shape.panel > shape.lanes * shape.dot * chosen["unroll"]  # else a tile's sum is one unrolled step
    if chosen["prefetch"] and loops_inside:
        panel = shape.panel * chosen["vectors"]
        moves.prefetch_ahead(sch, column if shape.folded or chosen["height"] == 1 else row, panel, panel)
    if not any(shape.at_call):
        sch.parallel(sch.fuse(batch, chunk, task))
    if shape.small and LOOPED not in chosen:
        sch.unroll(column)
    _accumulate(sch, chosen["unroll"], dot)
    for loop in (channels, columns):
        sch.unroll(loop)
    sch.vectorize(lane)
    if not any(shape.at_call):
        return sch.mod["main"]
    nest = [sch.get(loop).loop_var for loop in (batch, chunk, task)]
    row, column = (sch.get(loop).loop_var for loop in (row, column))
    func = sch.mod["main"]
    if rows_at_call:
        func = at_call.even_tasks(func, nest[-1], row, chosen["height"], cores)
    if columns_at_call:
        func = at_call.overlapped(func, column, chosen["rows"])
    return at_call.parallel_nest(at_call.unguarded(func), nest)


def _prologue(sch: TirSchedule, names: list[str], task: LoopRV) -> None:
    """What pads or scales by a gate, for each task, into a buffer that stays in the cache; what is before it inside."""
    kept = [name for name in names if name in ("pad", "gated")]
    for name in names:
        if name not in kept:
            sch.compute_inline(name)
    for name in kept:
        sch.compute_at(name, task, preserve_unit_loops=True)
        inner = sch.get_loops(name)[-1]
        if tir.as_int(sch.get(inner).extent) is not None:
            sch.vectorize(inner)


def _accumulate(sch: TirSchedule, steps: int, dot: Dot | None) -> None:
    *_, channels, _, columns, lane, i, r, q, iv = sch.get_loops(BLOCK)[: None if dot is None else -1]
    iv, unrolled = sch.split(iv, [None, steps])
    sch.reorder(i, r, q, iv, unrolled, columns, channels, lane)
    for loop in (unrolled, columns, channels):
        sch.unroll(loop)
    if dot is None:
        sch.vectorize(lane)
        sch.decompose_reduction(BLOCK, i)
        return
    zeros = sch.decompose_reduction(BLOCK, i)
    sch.vectorize(sch.get_loops(zeros)[-1])
    tensorize(sch, lane, dot)
