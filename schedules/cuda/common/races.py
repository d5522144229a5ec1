"""Whether threads of a scheduled kernel would reduce into one element at the same time, or write outside of it."""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer

from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import PrimFunc, SBlock, Var

__all__ = ["race"]

_LOWER = [s_tir.transform.CanonicalizeLoop(), s_tir.transform.LowerCrossThreadReduction()]
_BREAKS = (ValueError, tvm.error.InternalError)


def race(func: PrimFunc) -> str:
    """Return why the threads that share a reduction of `func` would not add up what they have, or write a result where
    no element is; nothing where they do what they should.

    TVM makes such a reduction one over shared memory where it knows the pattern; else it refuses, in the best case.
    """
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        lowered = tvm.ir.transform.Sequential(_LOWER)(module)["main"]
    except _BREAKS:
        return "TVM refuses its reduction across threads"
    threads = [loop.loop_var for loop in tir.collect(lowered.body, tirx.For) if _is_bound(loop)]
    realizes = block_realizes(lowered)
    if any(_is_shared(each.block, list(each.iter_values), threads) for each in realizes):
        return "its threads would add to one element at the same time"
    before = {each.block.name_hint for each in block_realizes(func)}
    made = [each for each in realizes if each.block.name_hint not in before]
    if any(not _stays_inside(each, lowered) for each in made if not _is_own(each.block)):
        return "its threads would write behind the end of a buffer"
    return ""


def _stays_inside(realize: SBlockRealize, func: PrimFunc) -> bool:
    """Whether the condition of a block keeps its axes within their extents.

    TVM drops a condition on what is not reduced from the block that writes the result of a reduction across threads.
    """
    analyzer = Analyzer()
    for loop in tir.collect(func.body, tirx.For):
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    with analyzer.constraint_scope(realize.predicate):
        return all(
            analyzer.can_prove(value < iv.dom.extent)
            for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
            if not analysis.reduces(iv)
        )


def _is_bound(loop: tirx.For) -> bool:
    return bool(loop.kind == tirx.ForKind.THREAD_BINDING and not loop.thread_binding.thread_tag.startswith("vthread"))


def _is_shared(block: SBlock, values: list[tirx.Expr], threads: list[Var]) -> bool:
    """Whether threads differ in what they reduce, and not in where to, which is in memory that they share."""
    reduced = [value for iv, value in zip(block.iter_vars, values, strict=True) if analysis.reduces(iv)]
    return not _is_own(block) and bool(tir.uses(reduced, threads))


def _is_own(block: SBlock) -> bool:
    """Whether only the thread itself, or its warp, has what the block writes."""
    return all(region.source.scope() in ("local", "warp") for region in block.writes)
