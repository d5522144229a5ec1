"""Software prefetch of what a loop reads next: the next panel of weights, slice by slice, while this one is used.

    for tile in T, annotated relaxc.prefetch_ahead = [D, S]:    each pass reads the S elements P[base .. base + S)
        for k in K: acc += A[tile, k] * P[base + k * s]
    →
    for tile in T:
        for k in K:
            acc += A[tile, k] * P[base + k * s]
            prefetch P[base + D + (tile * K + k) * S / (T * K)]

    for step in S, annotated relaxc.prefetch_stream = [D, E]:   each pass reads the E elements P[base + step * E ..)
    →   each pass first prefetches P[base + step * E + D .. + E)

The first tile of a panel otherwise waits for every line of it: a core reads its L2 six times faster than L3 on the
servers that we have measured, and their hardware prefetchers do not keep up with the multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.moves import PREFETCH_AHEAD, PREFETCH_STREAM
from relaxc.schedules.strict import made_up_for

__all__ = ["InsertPrefetches"]

_LINE_BYTES = 64
_READ, _TO_L2, _DATA = 0, 2, 1
"""The arguments of `llvm.prefetch`: a read; locality 2 of 3, which is L2 on x86-64 and aarch64; not code."""


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.InsertPrefetches")
class InsertPrefetches:
    """Expands the annotated loops, whose buffers must be flat; one that is not of the form above stays as it is."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _expanded)))


def _expanded(loop: Any) -> Any:
    if PREFETCH_STREAM in (loop.annotations or {}):
        return _streaming(loop)
    if PREFETCH_AHEAD not in (loop.annotations or {}):
        return loop
    ahead, elements = map(int, loop.annotations[PREFETCH_AHEAD])
    kept = {key: value for key, value in loop.annotations.items() if key != PREFETCH_AHEAD}
    plain = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=kept)
    chain = _serial_chain(plain)
    streams = [load for load in tir.loads(chain[-1].body) if _is_stream(load, chain)]
    if len({load.source.data for load in streams}) != 1 or not all(
        isinstance(each.extent, tirx.IntImm) for each in chain
    ):
        made_up_for(f"nothing is prefetched in the loop over {loop.loop_var}, which is marked for it")
        return plain
    carried = _carried(streams[0], chain, elements)
    return _with_last(plain, carried[-1], _prefetches(streams[0], carried, ahead, elements))


def _streaming(loop: Any) -> Any:
    """`loop`, each step of which first fetches what a later one reads of its stream: the load that vectors walk."""
    ahead, elements = map(int, loop.annotations[PREFETCH_STREAM])
    kept = {key: value for key, value in loop.annotations.items() if key != PREFETCH_STREAM}
    vectors = [each.loop_var for each in tir.collect(loop.body, tirx.For) if each.kind == tirx.ForKind.VECTORIZED]
    walked = [load for load in tir.loads(loop.body) if tir.uses(load, [loop.loop_var])]
    loads = [load for load in walked if tir.uses(load, vectors)] or _widest(walked)
    body = loop.body
    if len({load.source for load in loads}) == 1:
        index = loads[0].indices[0]
        first = index.base if isinstance(index, tirx.Ramp) else index
        start, lines = _at_first_step(first, loop), range(ahead, ahead + elements, _line(loads[0]))
        fetched = [_prefetch(loads[0].source, Analyzer().simplify(start + line)) for line in lines]
        body = tirx.SeqStmt([*fetched, body])
    else:
        made_up_for(f"nothing is prefetched in the loop over {loop.loop_var}, which is marked for it")
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=kept)


def _widest(loads: Sequence[Any]) -> list[Any]:
    """Of loads that instructions have made vectors, those of the most bytes."""
    sizes = [load.ty.dtype.bits * load.ty.dtype.lanes for load in loads]
    return [load for load, size in zip(loads, sizes, strict=True) if size == max(sizes)]


def _serial_chain(loop: Any) -> list[Any]:
    """`loop` and the serial loops in it, down to the innermost of the longest chain."""
    inside = [each for each in tir.collect(loop.body, tirx.For) if each.kind == tirx.ForKind.SERIAL]
    chains = [_serial_chain(each) for each in inside]
    return [loop, *max(chains, key=len, default=[])]


def _is_stream(load: Any, chain: Sequence[Any]) -> bool:
    """Whether `load` reads the same for each tile, and something else in each step."""
    first, last = chain[0].loop_var, chain[-1].loop_var
    return tir.uses(load, [first, last]) == [last]


def _carried(load: Any, chain: Sequence[Any], elements: int) -> Sequence[Any]:
    """The part of `chain` down to the loop that fetches: the innermost that has at least a line to, a step.

    Several lines at once take the buffers that the loads from L2 need: seven every 320 cycles cost 19 %, one every 46
    cycles 9 %; but with less than a line a step the computing of addresses is what costs. So where a line for each tile
    is all there is, the tiles fetch: a convolution whose short sums did so, eight steps each, took 1.7 times as long.
    """
    walks = [index for index, loop in enumerate(chain) if tir.uses(load, [loop.loop_var])]
    if _share(chain[: walks[0]], elements) <= _line(load):
        return chain[: walks[0]]
    ends = [*walks[1:], len(chain)]
    enough = [end for end in ends if _share(chain[:end], elements) >= _line(load)]
    return chain[: max(enough, default=ends[0])]


def _share(chain: Sequence[Any], elements: int) -> int:
    return -(-elements // prod(int(loop.extent.value) for loop in chain))


def _line(load: Any) -> int:
    return max(1, _LINE_BYTES * 8 // int(load.ty.dtype.bits))


def _prefetches(load: Any, chain: Sequence[Any], ahead: int, elements: int) -> list[Any]:
    """One step's share of the `elements`, each line once."""
    tiles = [loop for loop in chain if not tir.uses(load, [loop.loop_var])]
    steps = [*tiles, *(loop for loop in chain if tir.uses(load, [loop.loop_var]))]
    share = _share(steps, elements)
    ordinal: Any = 0
    for loop in steps:
        ordinal = ordinal * loop.extent + loop.loop_var
    # Past the end, at the last panel, is what the next layer reads, or nothing: a prefetch does not fault.
    start = Analyzer().simplify(_at_first_step(load.indices[0], chain[0]) + ahead + ordinal * share)
    return [_prefetch(load.source, start + i) for i in range(0, share, _line(load))]


def _at_first_step(index: Any, loop: Any) -> Any:
    """`index` with every loop inside `loop` at its first step."""
    inner = [each.loop_var for each in tir.collect(loop.body, tirx.For)]
    zero = {var: tirx.const(0, var.ty.dtype) for var in inner}
    return tvm_ffi.structural_map(index, (tirx.Var, lambda var: zero.get(var, var)))


def _prefetch(buffer: Any, index: Any) -> Any:
    address = tirx.address_of(tirx.BufferLoad(buffer, [index]))
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, _READ, _TO_L2, _DATA))


def _with_last(loop: Any, inner: Any, statements: Sequence[Any]) -> Any:
    """`loop` in which the loop `inner` ends each step with `statements`."""
    body = tirx.SeqStmt([inner.body, *statements])
    changed = tirx.For(inner.loop_var, inner.min, inner.extent, inner.kind, body, annotations=inner.annotations)
    replace = (tirx.For, lambda each: changed if each.loop_var.same_as(inner.loop_var) else each)
    return tvm_ffi.structural_map(loop, replace)
