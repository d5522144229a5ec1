"""The blocks of a PrimFunc, and new ones in loop nests of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import s_tir, tirx
from tvm.ir import Range

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import BufferRegion, PrimFunc, SBlock, SBlockRealize, Size, Stmt, Var

__all__ = ["access_regions", "block_names", "block_realizes", "loop_nest"]


def block_realizes(func: PrimFunc) -> list[SBlockRealize]:
    """Return every block of `func` but the root, in program order; blocks inside opaque blocks too."""
    root = func.body.block if isinstance(func.body, s_tir.SBlockRealize) else None
    return [r for r in tir.collect(func.body, s_tir.SBlockRealize) if root is None or not r.block.same_as(root)]


def block_names(func: PrimFunc) -> set[str]:
    """Return the names of the blocks of `func`."""
    return {str(realize.block.name_hint) for realize in block_realizes(func)}


def loop_nest(
    name: str,
    extents: Sequence[tuple[str, Size, bool]],
    body: Callable[[list[Var]], tuple[Stmt, Stmt | None]],
) -> Stmt:
    """Return a block named `name` in a loop nest of its own; `extents` has (name, extent, is reduction).

    `body` takes the block's variables and gives its statement, and its initial statement or None.
    """
    axes = [tirx.Var(f"v{label}", tir.INDEX) for label, _, _ in extents]
    kinds = [tirx.IterVar.CommReduce if reduction else tirx.IterVar.DataPar for _, _, reduction in extents]
    iters = [
        tirx.IterVar(Range(tir.index_const(0), tir.size(extent)), var, kind)
        for var, kind, (_, extent, _) in zip(axes, kinds, extents, strict=True)
    ]
    statement, init = body(axes)
    draft = s_tir.SBlock(iters, [], [], name, statement, init)
    touched = access_regions(draft)
    block = s_tir.SBlock(iters, touched[0], touched[1], name, statement, init)
    loops = [tirx.Var(label, tir.INDEX) for label, _, _ in extents]
    nest: Stmt = s_tir.SBlockRealize(loops, True, block)
    for var, (_, extent, _) in reversed(list(zip(loops, extents, strict=True))):
        nest = tirx.For(var, tir.index_const(0), tir.size(extent), tirx.ForKind.SERIAL, nest)
    return nest


def access_regions(block: SBlock) -> tuple[list[BufferRegion], list[BufferRegion]]:
    """Return the buffer regions that a block reads and writes, from its body."""
    stores = {store.buffer for store in tir.collect(block.body, tirx.BufferStore)}
    buffers = {load.source: load.source for load in tir.loads(block.body)} | {store: store for store in stores}
    reads, writes, opaque = s_tir.analysis.get_sblock_access_region(block, {b: b for b in buffers})
    return [*reads, *opaque], [*writes, *opaque]
