"""Convolution on blocked layouts by tile registers (AMX): the image is regrouped a task at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tvm import s_tir

from relaxc.schedules.cpu.common import tile_registers
from relaxc.schedules.cpu.common.dot_product import steps_of
from relaxc.schedules.cpu.common.register_tile import blocks_around
from relaxc.schedules.cpu.conv import blocked_compute, tiles_compute, tiles_plan
from relaxc.schedules.cpu.conv.tiles_compute import REGROUPED
from relaxc.schedules.cpu.conv.tiles_layout import Layout
from relaxc.schedules.cpu.conv.tiles_nest import by_tiles
from relaxc.schedules.cpu.conv.tiles_plan import Tasks
from relaxc.schedules.dots import accumulator_of
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.ir.work import work_of, worth_parallel
from relaxc.schedules.operators import Conv2d
from relaxc.schedules.plan import Plan
from relaxc.schedules.planned import Array, Planned
from relaxc.schedules.template import Declined

__all__ = ["Conv2dTiles"]

BLOCK = "conv2d"


class Conv2dTiles(Planned[Conv2d]):
    """`C[n, o, h, w, v] = epilogue(sum of A[n, i, h*s + r, w*s + q, iv] * W[o, i', r, q, k, v, j])`.

        for task (n, chunk of o, block of rows) in parallel:
            G[i', f, y, x, 64 bytes] = A                    # regrouped, padded, of each phase of a stride by itself
            for panel of o, for strip of rows:
                for tile of pixels of the strip:
                    S[pixels, vectors][16] = 0              # in registers
                    for i', r, q: S += G[i', f(r, q), pixels + p(r, q)] * W[o, i', r, q]
                C[strip] = epilogue(S)

    Pixels are counted along rows and over their ends: those between two rows are computed and dropped. So 16 of them
    lie 64 bytes from each other whatever the kernel, and each tap is as far from all.
    Parameters: `matrix` and `vectors`, the registers of sums down and across; `lines` rows of a strip, `height` of a
    task; `chunks` of o that are tasks of their own.
    The limit: an instruction of 16x16xdepth in 16 cycles, and 1 KiB of each operand from L2 for it.
    """

    name = "cpu.conv2d_tiles"
    version = 1
    layout = ("block", "dot")
    computes = Conv2d
    dtypes = tuple((*pair, accumulator_of(pair[1])) for pair in tile_registers.dtypes)
    kernel = "conv2d"
    plans = tiles_plan
    repacks = True

    def default(self, operator: Conv2d, cpu: Cpu) -> Mapping[str, int] | None:
        """See `Planned`."""
        return None if self.wrong_dtypes(operator) else tiles_plan.default(operator, cpu)

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """See `Planned`."""
        return partial(tiles_compute.conv2d, plan=plan)

    def pack(self, plan: Plan, weight: Array) -> Array:
        """See `Planned`."""
        lanes, dot = plan.parameters["block"], steps_of(plan.parameters)
        return blocked_compute.pack_weight(weight, _depth(plan), lanes, dot)

    def packed_shape(self, plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
        """See `Planned`."""
        return blocked_compute.packed_shape(shape, _depth(plan), plan.parameters["block"], steps_of(plan.parameters))

    def emit(self, func: PrimFunc, operator: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> PrimFunc | Declined:
        """See `Planned`."""
        found = blocks_around(func, BLOCK)
        if isinstance(found, Declined):
            return found
        before, _, after = found
        if len(after[-1].iter_vars) != 5:
            return Declined("its epilogue is not over the blocked result")
        dot = tiles_plan.instruction_of(operator, cpu)
        if dot is None:
            return Declined("the target has no instruction for its plan")
        sch, last = s_tir.Schedule(func), after[-1].name_hint
        for block in (*before, *after[:-1]):
            if block.name_hint != REGROUPED:
                sch.compute_inline(block.name_hint)
        tasks = Tasks.of(Layout.of(operator, parameters), parameters)
        parallel = worth_parallel(work_of(func).known_flops)
        return by_tiles(sch.mod["main"], BLOCK, last, tasks, dot, parallel=parallel)


def _depth(plan: Plan) -> int:
    """Channels of the image in the innermost axis of the weights."""
    return Layout.of(plan.operator, plan.parameters).depth  # type: ignore[arg-type]  # it is of a Conv2d
