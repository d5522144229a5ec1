"""Whether threads of a scheduled kernel would reduce into one element at the same time."""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx

from schedules.ir import analysis, tir
from schedules.ir.types import PrimFunc, SBlock, Var

__all__ = ["race"]

_LOWER = [s_tir.transform.CanonicalizeLoop(), s_tir.transform.LowerCrossThreadReduction()]
_BREAKS = (ValueError, tvm.error.InternalError)


def race(func: PrimFunc) -> str:
    """Return why the threads that share a reduction of `func` would not add up what they have, or nothing.

    TVM makes such a reduction one over shared memory where it knows the pattern; else it refuses, in the best case.
    """
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        lowered = tvm.ir.transform.Sequential(_LOWER)(module)["main"]
    except _BREAKS:
        return "TVM refuses its reduction across threads"
    threads = [loop.loop_var for loop in tir.collect(lowered.body, tirx.For) if _is_bound(loop)]
    realizes = tir.block_realizes(lowered)
    if any(_is_shared(each.block, list(each.iter_values), threads) for each in realizes):
        return "its threads would add to one element at the same time"
    return ""


def _is_bound(loop: tirx.For) -> bool:
    return bool(loop.kind == tirx.ForKind.THREAD_BINDING and not loop.thread_binding.thread_tag.startswith("vthread"))


def _is_shared(block: SBlock, values: list[tirx.Expr], threads: list[Var]) -> bool:
    """Whether threads differ in what they reduce, and not in where to, which is in memory that they share."""
    own = all(region.source.scope() in ("local", "warp") for region in block.writes)
    reduced = [value for iv, value in zip(block.iter_vars, values, strict=True) if analysis.reduces(iv)]
    return not own and bool(tir.uses(reduced, threads))
