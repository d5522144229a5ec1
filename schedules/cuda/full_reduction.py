"""Sums, maxima and the like over all elements, whatever is before and behind them, on a GPU of any kind."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.base import try_inline

from relaxc.schedules.cuda.common.races import race
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.single import without_single_reductions
from relaxc.schedules.ir.types import LoopRV, PrimFunc, SBlock, Target, TirSchedule
from relaxc.schedules.template import Declined, Parameters, Template

__all__ = ["FullReduction"]

_THREADS = 1024
_MOST_BLOCKS = 256
"""Each SM of the largest GPUs has one or two."""
_A_THREAD = 4
"""Elements that a thread takes at least, where there is more than one block."""
_REDUCERS = (tirx.Add, tirx.Mul, tirx.Min, tirx.Max)


class FullReduction(Template[PrimFunc, Gpu]):
    """Each reduction as two kernels: blocks of threads over parts of the elements, then one over what these found.

    dlight gives a single thread all of it: 1.4 million elements took longer than ten seconds. What is elementwise is
    inlined where it can be, and a kernel of its own where not.
    """

    name = "cuda.full_reduction"
    version = 1

    def matched(self, func: PrimFunc, target: Target) -> PrimFunc | Declined:
        """Return `func` where all that it reduces is reduced to one element, and the rest is elementwise."""
        func = without_single_reductions(func)
        blocks = [realize.block for realize in block_realizes(func)]
        reductions = [block for block in blocks if block.init is not None]
        if not reductions or not all(map(_is_full, reductions)):
            return Declined("not every reduction is one over all elements")
        if not all(analysis.is_injective(block) for block in blocks if block.init is None):
            return Declined("a block is not elementwise")
        if None in analysis.nests(func):
            return Declined("a statement is no plain loop nest")
        return func

    def emit(self, func: PrimFunc, form: PrimFunc, parameters: Parameters, gpu: Gpu) -> PrimFunc | Declined:
        """See `Template`."""
        sch = s_tir.Schedule(form)
        infos = try_inline(sch, normalize_prim_func(sch))
        # rfactor breaks on statements without a loop, so these get theirs first
        for info in sorted(infos, key=lambda info: "R" in info.dom_kind()):
            loops = sch.get_loops(info.block_rv)
            reduced = [loop for loop, kind in zip(loops, info.dom_kind(), strict=True) if kind == "R"]
            if reduced:
                _reduce(sch, info.block_rv, reduced)
            else:
                _spread(sch, info.block_rv, loops)
        made = sch.mod["main"]
        reason = race(made)
        return Declined(reason) if reason else made


def _is_full(block: SBlock) -> bool:
    """Whether the block reduces sizes that are known, with an operator that may be taken apart, to one element."""
    extents = [tir.as_int(iv.dom.extent) for iv in block.iter_vars]
    if not analysis.is_reduction(block) or None in extents or 0 in extents:
        return False
    store = block.body
    if not isinstance(store.value, _REDUCERS):
        return False
    if not any(tir.loads_what_it_stores(side, store) for side in (store.value.a, store.value.b)):
        return False
    kept = [iv for iv in block.iter_vars if not analysis.reduces(iv)]
    return all(tir.as_int(iv.dom.extent) == 1 for iv in kept)


def _reduce(sch: TirSchedule, block: object, loops: list[LoopRV]) -> None:
    fused = sch.fuse(*loops)
    blocks = min(_MOST_BLOCKS, int(sch.get(fused).extent) // (_THREADS * _A_THREAD))
    if blocks > 1:
        _, part, _ = sch.split(fused, [None, blocks, _THREADS])
        _in_parts(sch, sch.rfactor(part, 0))
        fused = sch.get_loops(block)[-1]
    sch.bind(sch.add_unit_loop(fused), "blockIdx.x")
    each, thread = sch.split(fused, [None, min(_THREADS, 32 * -(-int(sch.get(fused).extent) // 32))])
    sch.reorder(thread, each)
    sch.bind(thread, "threadIdx.x")


def _in_parts(sch: TirSchedule, block: object) -> None:
    """A block of threads each part: a thread adds up its own in a register, and then all do in shared memory.

    The condition at the end is on the registers alone: with it TVM does not see a reduction across threads.
    """
    each, part, thread = sch.get_loops(block)[-3:]
    sch.reorder(part, thread, each)
    own = sch.rfactor(thread, 0)
    sch.set_scope(own, 0, "local")
    part, thread, each = sch.get_loops(own)[-3:]
    sch.bind(part, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.reverse_compute_at(block, part)
    sch.bind(sch.get_loops(block)[-1], "threadIdx.x")
    sch.decompose_reduction(own, each)


def _spread(sch: TirSchedule, block: object, loops: list[LoopRV]) -> None:
    """An elementwise block, a thread an element."""
    fused = sch.fuse(*loops) if loops else sch.add_unit_loop(block)
    outer, thread = sch.split(fused, [None, _THREADS])
    sch.bind(outer, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
