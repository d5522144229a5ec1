"""Vector loops of GPU kernels whose addresses are not whole vectors: these take one element after the other.

    for l in vectorized(2): c[i * 61 + j * 2 + l] = x[l]
    →
    for l in unroll(2): c[i * 61 + j * 2 + l] = x[l]

A GPU faults where a vector's address is no multiple of its size; a CPU reads it all the same. TVM does not ask: loops
over rows of an odd length have a condition on their lanes, and TVM runs these lane by lane, until VersionVectorLoops
makes vectors of what is inside of the rows.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Range, TensorLoad
from tvm.sym import Analyzer

from relaxc.schedules.ir import tir

__all__ = ["UnrollUnalignedVectors", "analyzer_of", "is_multiple"]


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.UnrollUnalignedVectors")
class UnrollUnalignedVectors:
    """Unrolls each vectorized loop of a CUDA kernel with an access that is not provably aligned to its lanes."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        target = func.attrs.get("target") if func.attrs is not None else None
        if target is None or target.kind.name != "cuda":
            return func
        analyzer = analyzer_of(func)

        def aligned(loop: Any) -> Any:
            if loop.kind != tirx.ForKind.VECTORIZED or _is_aligned(loop, analyzer):
                return loop
            return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body)

        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, aligned)))


def analyzer_of(func: Any) -> Analyzer:
    """Return what knows the ranges of all loops and threads of `func`, and the values that are bound to names."""
    analyzer = Analyzer()

    def thread(node: Any) -> None:
        if node.attr_key == "thread_extent":
            analyzer.bind(node.node.var, tir.from_zero(node.node.var, node.value), allow_override=True)

    def loop(node: Any) -> None:
        analyzer.bind(node.loop_var, Range.from_min_extent(node.min, node.extent), allow_override=True)

    def bound(node: Any) -> None:
        if str(node.value.ty.dtype).startswith("int"):
            analyzer.bind(node.var, node.value, allow_override=True)

    kinds = [(tirx.AttrStmt, thread), (tirx.For, loop), (tirx.Bind, bound)]
    tvm_ffi.structural_walk(func.body, kinds, order="pre")
    return analyzer


def is_multiple(value: Any, factor: int, analyzer: Analyzer) -> bool:
    """Return whether `value` is provably a multiple of `factor`."""
    found = analyzer.modular_set(analyzer.simplify(value))
    return bool(found.coeff % factor == 0 and found.base % factor == 0)


def _is_aligned(loop: Any, analyzer: Analyzer) -> bool:
    lanes = tir.as_int(loop.extent)
    if lanes is None:
        return False
    stores = [(store.buffer, store.indices) for store in tir.collect(loop.body, tirx.BufferStore)]
    loads = [(load.source, load.indices) for load in tir.loads(loop.body)]
    return all(_access(tir.flatten(indices, buffer.shape), loop, lanes, analyzer) for buffer, indices in stores + loads)


def _access(index: Any, loop: Any, lanes: int, analyzer: Analyzer) -> bool:
    """Whether the lanes read one element, or elements that are gathered, or a vector that is aligned."""
    lane = loop.loop_var
    if any(tir.uses(load, [lane]) for load in tir.collect(index, TensorLoad)):
        return True
    step = _step(index, lane, lanes, analyzer)
    if step is None:
        return False
    return step != 1 or is_multiple(_first(index, lane), lanes, analyzer)


def _step(index: Any, lane: Any, lanes: int, analyzer: Analyzer) -> int | None:
    """How far the index goes with each lane, if that is always as far."""

    def of(part: Any) -> int | None:
        return _step(part, lane, lanes, analyzer)

    if not tir.uses(index, [lane]):
        return 0
    if isinstance(index, tirx.Var):
        return 1
    if isinstance(index, tirx.Cast):
        return of(index.value)
    if isinstance(index, tirx.Add | tirx.Sub):
        a, b = of(index.a), of(index.b)
        return None if a is None or b is None else a + b if isinstance(index, tirx.Add) else a - b
    if isinstance(index, tirx.Mul):
        factor, rest = (index.a, index.b) if isinstance(index.a, tirx.IntImm) else (index.b, index.a)
        step, known = of(rest), tir.as_int(factor)
        return None if step is None or known is None else step * known
    if isinstance(index, tirx.FloorDiv | tirx.FloorMod):
        divisor, step = tir.as_int(index.b), of(index.a)
        if divisor is None or divisor % lanes or step != 1 or not is_multiple(_first(index.a, lane), lanes, analyzer):
            return None
        return 0 if isinstance(index, tirx.FloorDiv) else 1
    return None


def _first(index: Any, lane: Any) -> Any:
    """The index at the first lane."""
    return tir.substitute(index, {lane: tirx.const(0, lane.ty.dtype)})
