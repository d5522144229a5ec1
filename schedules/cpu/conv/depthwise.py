"""Depthwise convolutions on a CPU: vectors along a row, the kernel unrolled, each plane padded in the cache."""

from __future__ import annotations

from tvm import s_tir

from relaxc.schedules.cpu.common.nest import lanes_of, schedule_nests
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import analysis, moves, tir
from relaxc.schedules.ir.contraction import Contraction, find
from relaxc.schedules.ir.types import LoopRV, PrimFunc, SBlock, Target, TirSchedule
from relaxc.schedules.ir.work import work_of
from relaxc.schedules.template import Choices, Declined, Parameters, Template

__all__ = ["Depthwise"]

MAX_UNROLLED = 25
"""Kernel elements up to which the kernel loops are unrolled."""


class Depthwise(Template[Contraction, Cpu]):
    """`C[n, c, y, x] = epilogue(sum over i, j of D[n, c, y*s + i*d, x*s + j*d] * W[c, i, j])`.

    for n, c in parallel:
        padded = pad(D[n, c])                         # if there is padding
        for y, x block: acc[lanes] += padded[y + i, x + j + lane] * W[c, i, j];  C = epilogue(acc)
    """

    name = "cpu.depthwise"
    version = 2

    def default(self, form: Contraction, cpu: Cpu) -> Parameters:
        """See `Template`."""
        return {"lanes": lanes_of(form.block, cpu)}

    def space(self, form: Contraction, cpu: Cpu) -> Choices:
        """Return from a quarter of a vector, where columns are few, to two vectors."""
        lanes = lanes_of(form.block, cpu)
        return {"lanes": tuple(n for n in (lanes // 4, lanes // 2, lanes, 2 * lanes) if n > 1 or n == lanes)}

    def emit(self, func: PrimFunc, form: Contraction, parameters: Parameters, cpu: Cpu) -> PrimFunc | Declined:
        """See `Template`."""
        sch = self._schedule(func, form, parameters["lanes"], work_of(func).known_flops, cpu.cores)
        return sch if isinstance(sch, Declined) else schedule_nests(sch.mod["main"], cpu)

    def matched(self, func: PrimFunc, target: Target) -> Contraction | Declined:
        """Return the contraction of one output channel a group."""
        sch = s_tir.Schedule(func)
        moves.inline_producers(sch)
        merged = find(sch.mod["main"])
        if isinstance(merged, Declined):
            return merged
        if len(merged.reduced) < 2 or not merged.b or merged.size(merged.m) != 1:
            return Declined("not one output channel a group")
        return merged

    def _schedule(
        self, func: PrimFunc, c: Contraction, lanes: int, work: int | None, cores: int
    ) -> TirSchedule | Declined:
        sch = s_tir.Schedule(func)
        name = c.block.name_hint
        producer = _padding(func, name)
        moves.inline_producers(sch, keep=lambda block: producer is not None and block.name_hint == producer)
        nest = analysis.nest_of(sch.mod["main"], name)
        if nest is None:
            return Declined("the convolution is not in plain loops")
        spatial, kernel = nest.spatial_loops(sch, name), nest.reduction_loops(sch, name)
        out = _epilogue(sch.mod["main"], nest.block)
        inside = _axes_of_a_plane(nest, c)
        plane, rows, column = spatial[:-inside], spatial[-inside:-1], spatial[-1]
        task = moves.parallelize(sch, plane, work, cores)
        block, lane = self._column_block(sch, column, lanes)
        sch.reorder(*rows, *block, *kernel, lane)
        if out is None:
            out = str(sch.get(sch.cache_write(name, 0, "local")).name_hint)
        else:
            sch.set_scope(name, 0, "local")
        sch.reverse_compute_at(out, [task, *rows, *block][-1], preserve_unit_loops=True)
        moves.vectorize_inner(sch, sch.get_loops(out)[-1], lanes)
        if producer is not None:
            sch.compute_at(producer, task, preserve_unit_loops=True)
            moves.vectorize_inner(sch, sch.get_loops(producer)[-1], lanes)
        sch.vectorize(lane)
        extents = [tir.as_int(sch.get(loop).extent) for loop in kernel]
        if all(e is not None for e in extents) and tir.product(extents) <= MAX_UNROLLED:
            for loop in kernel:
                sch.unroll(loop)
        sch.decompose_reduction(name, kernel[0])
        return sch

    @staticmethod
    def _column_block(sch: TirSchedule, column: LoopRV, lanes: int) -> tuple[list[LoopRV], LoopRV]:
        extent = tir.as_int(sch.get(column).extent)
        if extent is not None and extent <= lanes:
            return [], column
        outer, lane = sch.split(column, [None, lanes])
        return [outer], lane


def _axes_of_a_plane(nest: analysis.Nest, c: Contraction) -> int:
    """How many of the last parallel axes run inside one channel; at least the last one does."""
    spatial = [iv for iv in nest.block.iter_vars if not analysis.reduces(iv)]
    count = 1
    while count < len(spatial) - 1 and spatial[-1 - count].var in c.n:
        count += 1
    return count


def _padding(func: PrimFunc, name: str) -> str | None:
    """The stage that pads the input of the block `name`."""
    nest = analysis.nest_of(func, name)
    sources = [] if nest is None else [load.source for load in tir.loads(nest.block.body.value)]
    for candidate in analysis.nests(func):
        if candidate is None or not analysis.is_injective(candidate.block) or not tir.conditions(candidate.block):
            continue
        if any(candidate.block.body.buffer.same_as(source) for source in sources):
            return str(candidate.block.name_hint)
    return None


def _epilogue(func: PrimFunc, block: SBlock) -> str | None:
    """The one elementwise stage that reads the block's result at the stage's own axes."""
    readers = analysis.readers(func, block.body.buffer)
    if len(readers) != 1 or not analysis.is_injective(readers[0]):
        return None
    own = [iv.var for iv in readers[0].iter_vars]
    for load in tir.loads(readers[0].body.value):
        at_axes = len(load.indices) == len(own) and all(map(tir.same_var, load.indices, own))
        if load.source.same_as(block.body.buffer) and not at_axes:
            return None
    return str(readers[0].name_hint)
