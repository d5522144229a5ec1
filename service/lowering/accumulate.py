"""Sums that a loop adds to memory, kept in registers while the loop runs.

    for k in K, annotated relaxc.accumulate_locally:
        for i, j (unrolled or vectorized): C[f(i, j)] = C[f(i, j)] + x(k, i, j)
    →
    for i, j: tile[i, j] = C[f(i, j)]
    for k in K: for i, j: tile[i, j] = tile[i, j] + x(k, i, j)
    for i, j: C[f(i, j)] = tile[i, j]

A product whose depth is split works on its accumulators once for each part. LLVM would do this itself if it knew that
nothing in the loop reads C, which a prefetch in it hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.moves import ACCUMULATE_LOCALLY
from relaxc.schedules.strict import made_up_for

__all__ = ["AccumulateLocally"]

_UNROLLED = (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.AccumulateLocally")
class AccumulateLocally:
    """Expands the annotated loops, whose buffers must be flat; one that is not of the form above stays as it is."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _expanded)))


def _expanded(loop: Any) -> Any:
    if ACCUMULATE_LOCALLY not in (loop.annotations or {}):
        return loop
    kept = {key: value for key, value in loop.annotations.items() if key != ACCUMULATE_LOCALLY}
    stores = tir.collect(loop.body, tirx.BufferStore)
    around = tir.collect(loop.body, tirx.For)
    plain = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=kept)
    if len(stores) != 1 or tir.collect(loop.body, tirx.IfThenElse):
        made_up_for(f"the loop over {loop.loop_var}, marked to accumulate in registers, has a condition or two stores")
        return plain
    (store,) = stores
    axes = [each for each in reversed(around) if tir.uses(store.indices[0], [each.loop_var])]
    fixed = tir.uses(store.indices[0], [loop.loop_var])
    if fixed or not axes or not all(_is_axis(each) for each in axes):
        made_up_for(f"the loop over {loop.loop_var}, marked to accumulate in registers, has no tile of constant size")
        return plain
    return _local(plain, store, axes)


def _is_axis(loop: Any) -> bool:
    return loop.kind in _UNROLLED and isinstance(loop.extent, tirx.IntImm)


def _local(loop: Any, store: Any, axes: Sequence[Any]) -> Any:
    extents = [int(each.extent) for each in axes]
    tile = tirx.decl_buffer((prod(extents),), store.buffer.dtype, f"{store.buffer.name}_tile", scope="local")
    at = _flat([each.loop_var for each in axes], extents)

    def redirected(node: Any) -> Any:
        if isinstance(node, tirx.BufferStore):
            return tirx.BufferStore(tile, node.value, [at])
        return tirx.BufferLoad(tile, [at]) if node.source.same_as(store.buffer) else node

    kinds = [(type(store), redirected), (type(tir.loads(store)[0]), redirected)]
    body = tvm_ffi.structural_map(loop.body, kinds)
    inner = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)
    read = _copy(axes, lambda old, new: tirx.BufferStore(tile, tirx.BufferLoad(store.buffer, [old]), [new]), store, at)
    write = _copy(axes, lambda old, new: tirx.BufferStore(store.buffer, tirx.BufferLoad(tile, [new]), [old]), store, at)
    return tirx.SeqStmt([tirx.AllocBuffer(tile), read, inner, write])


def _flat(axes: Sequence[Any], extents: Sequence[int]) -> Any:
    index: Any = 0
    for axis, extent in zip(axes, extents, strict=True):
        index = index * extent + axis
    return index


def _copy(axes: Sequence[Any], statement: Any, store: Any, at: Any) -> Any:
    """`statement(index in the buffer, index in the tile)` over all `axes`, with loop variables of its own."""
    fresh = {each.loop_var: tirx.Var(each.loop_var.name, each.loop_var.ty.dtype) for each in axes}

    def renamed(index: Any) -> Any:
        return tvm_ffi.structural_map(index, (tirx.Var, lambda var: fresh.get(var, var)))

    body = statement(renamed(store.indices[0]), renamed(at))
    for each in reversed(axes):
        body = tirx.For(fresh[each.loop_var], each.min, each.extent, each.kind, body)
    return body
