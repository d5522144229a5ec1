"""Reductions over one element, as blocks that reduce nothing."""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx

from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.types import IterVar, PrimFunc, SBlock

__all__ = ["without_single_reductions"]


def without_single_reductions(func: PrimFunc) -> PrimFunc:
    """Return `func` with each sum, maximum and the like over axes of length 1 as the one value that it stores.

    TVM takes a block whose reduced axes are all of length 1 for a plain one, though it still has its initial value, and
    inlines what follows into both: a bias is added to the initial value, and once more to the result.
    """
    return tvm_ffi.structural_map(func, (s_tir.SBlock, _plain))


def _plain(block: SBlock) -> SBlock:
    reduced = [iv for iv in block.iter_vars if analysis.reduces(iv)]
    first, store = block.init, block.body
    if not isinstance(first, tirx.BufferStore) or not isinstance(store, tirx.BufferStore):
        return block
    if any(tir.as_int(iv.dom.extent) != 1 for iv in reduced) or not tir.same(first.indices, store.indices):
        return block
    value = tir.replace_loads(
        store.value, store.buffer, lambda load: first.value if tir.loads_what_it_stores(load, store) else load
    )
    if any(load.source.same_as(store.buffer) for load in tir.loads(value)):
        return block
    return s_tir.SBlock(
        [_spatial(iv) for iv in block.iter_vars],
        [region for region in block.reads if not region.source.same_as(store.buffer)],
        block.writes,
        block.name_hint,
        tirx.BufferStore(store.buffer, value, list(store.indices)),
        alloc_buffers=block.alloc_buffers,
        match_buffers=block.match_buffers,
        annotations=block.annotations,
    )


def _spatial(axis: IterVar) -> IterVar:
    """The same axis, not reduced over."""
    return tirx.IterVar(axis.dom, axis.var, tirx.IterVar.DataPar) if analysis.reduces(axis) else axis
