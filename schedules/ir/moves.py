"""Scheduling steps that several templates share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import s_tir
from tvm.error import InternalError

from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import LoopRV, SBlock, TirSchedule, Var
from relaxc.schedules.ir.work import expression_size, is_expensive, iterations, worth_parallel
from relaxc.schedules.strict import made_up_for

__all__ = [
    "ACCUMULATE_LOCALLY",
    "PREFETCH_AHEAD",
    "accumulate_locally",
    "fuse_all",
    "inline_producers",
    "loop_of",
    "parallelize",
    "prefetch_ahead",
    "prefetch_stream",
    "vectorize_inner",
]

ACCUMULATE_LOCALLY = "relaxc.accumulate_locally"
"""The annotation that `accumulate_locally` leaves on a loop, for the lowering."""

PREFETCH_STREAM = "relaxc.prefetch_stream"
"""The annotation of `prefetch_stream`."""

PREFETCH_AHEAD = "relaxc.prefetch_ahead"
"""The annotation that `prefetch_ahead` leaves on a loop, for the lowering."""

_NO_MULTIPLE = "CanProveDivisible"
"""The check of TVM's that stops it in sizes that it cannot divide."""

MAX_INLINED_NODES = 400
"""Expression nodes over which a producer stays a stage of its own: its uses multiply when it is inlined."""


def inline_producers(sch: TirSchedule, *, keep: Callable[[SBlock], bool] = lambda block: False) -> None:
    """Elementwise stages go into the stages that read them, in program order.

        t[i] = f(a[i]);  c[i] = g(t[i])   →   c[i] = g(f(a[i]))

    A stage stays where TVM refuses (it writes an output, say), where `keep` says so, where the expression
    would grow too large, or where an expensive function would be evaluated more often than now.
    """
    for realize in block_realizes(sch.mod["main"]):
        block = realize.block
        if not analysis.is_injective(block) or keep(block):
            continue
        name = block.name_hint
        current = sch.get(sch.get_sblock(name))
        readers = analysis.readers(sch.mod["main"], current.body.buffer)
        if not readers or not _worth_inlining(current, readers):
            continue
        try:
            sch.compute_inline(name)
        except s_tir.ScheduleError as error:
            made_up_for(f"{name} looks as if it could be inlined, and cannot: {error}")
            continue


def _worth_inlining(block: SBlock, readers: Sequence[SBlock]) -> bool:
    buffer = block.body.buffer
    uses = [sum(load.source.same_as(buffer) for load in tir.loads(reader)) for reader in readers]
    nodes = expression_size(block.body.value)
    sizes = [nodes * use + expression_size(r.body) for use, r in zip(uses, readers, strict=True)]
    if max(sizes) > MAX_INLINED_NODES:
        return False
    if not is_expensive(block.body.value):
        return True
    return len(readers) == 1 and iterations(readers[0]) == iterations(block)


def fuse_all(sch: TirSchedule, loops: Sequence[LoopRV]) -> LoopRV:
    """Fuse `loops` into one; one loop is itself."""
    return loops[0] if len(loops) == 1 else sch.fuse(*loops)


def _fuse_outer(sch: TirSchedule, loops: Sequence[LoopRV]) -> LoopRV:
    """Fuse as many of the outer `loops` as TVM can: products of `n - 2` may be no multiples of it there."""
    for count in range(len(loops), 1, -1):
        try:
            return sch.fuse(*loops[:count])
        except InternalError as error:
            if _NO_MULTIPLE not in str(error):
                raise
    return loops[0]


def parallelize(sch: TirSchedule, loops: Sequence[LoopRV], work: int | None, cores: int) -> LoopRV | None:
    """Run the outer `loops` as one parallel loop, if `work` (scalar operations, None for unknown) is worth it."""
    if not loops:
        return None
    fused = _fuse_outer(sch, loops)
    if cores > 1 and worth_parallel(work):
        sch.parallel(fused)
    return fused


def loop_of(sch: TirSchedule, name: str, axis: Var) -> LoopRV:
    """Return the innermost loop around the block `name` that its `axis` is bound to. Raise ValueError without one."""
    realize = next(r for r in block_realizes(sch.mod["main"]) if r.block.name_hint == name)
    value = next(v for iv, v in zip(realize.block.iter_vars, realize.iter_values, strict=True) if iv.var.same_as(axis))
    for loop in reversed(sch.get_loops(name)):
        if tir.uses(value, [sch.get(loop).loop_var]):
            return loop
    raise ValueError(f"axis {axis} of block {name} is bound to no loop")


def vectorize_inner(sch: TirSchedule, loop: LoopRV, lanes: int) -> list[LoopRV]:
    """Run `loop` in vectors of `lanes`, with a scalar tail where these do not divide it.

        for i in n   →   for i0 in ceil(n / lanes): for i1 in vectorized(lanes)

    A constant extent of at most `lanes` becomes one vector. Returns the loops.
    """
    extent = tir.as_int(sch.get(loop).extent)
    if extent is not None and extent <= lanes:
        if extent > 1:
            sch.vectorize(loop)
        return [loop]
    outer, inner = sch.split(loop, [None, lanes])
    sch.vectorize(inner)
    return [outer, inner]


def prefetch_ahead(sch: TirSchedule, tiles: LoopRV, ahead: int, elements: int) -> None:
    """Have the loop over `tiles`, each of which reads the same `elements`, fetch those that are `ahead` into L2.

    for tile in T: use P[base .. base + elements)   also fetches   P[base + ahead .. base + ahead + elements)

    a slice with each tile; `relaxc.service.lowering.prefetch` says how. The right annotation changes no result.
    A single tile is no loop by then: what it would fetch, the tile itself has begun to read.
    """
    if tir.as_int(sch.get(tiles).extent) == 1:
        return
    sch.annotate(tiles, PREFETCH_AHEAD, [ahead, elements])


def prefetch_stream(sch: TirSchedule, steps: LoopRV, ahead: int, elements: int) -> None:
    """Have each of the `steps`, which reads `elements` of a stream in vectors, fetch those that are `ahead` of them.

    for s in S: use P[base + s * elements ..]   also fetches   P[base + s * elements + ahead .. + elements)

    A single step is no loop by then, and walks no stream.
    """
    if tir.as_int(sch.get(steps).extent) == 1:
        return
    sch.annotate(steps, PREFETCH_STREAM, [ahead, elements])


def accumulate_locally(sch: TirSchedule, loop: LoopRV) -> None:
    """Have the reduction `loop` hold what it adds to in registers, from before its first to after its last step."""
    sch.annotate(loop, ACCUMULATE_LOCALLY, 1)
