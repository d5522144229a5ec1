"""What the blocks of a kernel are to its template, as annotations: names may be others by the time it is scheduled."""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import s_tir, tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_names, block_realizes
from relaxc.schedules.ir.extremes import SHIFTS, is_shift
from relaxc.schedules.ir.types import PrimFunc, SBlock

__all__ = ["SAFE_SHIFT", "SHIFT", "called_by_roles", "is_safe_softmax", "with_roles"]

_ROLE = "relaxc.role"

SHIFT, SAFE_SHIFT = {"relaxc.shift": "plain"}, {"relaxc.shift": "safe"}
"""The annotation of a block whose values a softmax subtracts before its exponentials, torch's safe one the other."""


def with_roles(func: PrimFunc) -> PrimFunc:
    """Return a PrimFunc that a template has described with what that calls its blocks as their roles."""
    root = func.body.block.name_hint

    def noted(block: SBlock) -> SBlock:
        if block.name_hint == root or _ROLE in block.annotations:
            return block
        return _block(block, str(block.name_hint), {**block.annotations, _ROLE: str(block.name_hint)})

    return _mapped(func, noted)


def called_by_roles(func: PrimFunc) -> PrimFunc:
    """Return the PrimFunc whose blocks with roles are called by these, as templates look for them, and no others."""
    roles = {str(role) for each in block_realizes(func) if (role := each.block.annotations.get(_ROLE)) is not None}
    func = _with_shifts(func)
    if not roles:
        return func
    taken = roles | block_names(func)

    def called(block: SBlock) -> SBlock:
        kept = dict(block.annotations)
        role = kept.pop(_ROLE, None)
        if role is not None:
            return _block(block, str(role), kept)
        if block.name_hint not in roles:
            return block
        name = next(name for number in range(1, len(taken) + 2) if (name := f"{block.name_hint}_{number}") not in taken)
        taken.add(name)
        return _block(block, name, kept)

    return _mapped(func, called)


def is_safe_softmax(func: PrimFunc) -> bool:
    """Return whether a PrimFunc is a softmax that gives 0 where everything is masked."""
    found = (each.block.annotations.get(name) for each in block_realizes(func) for name in SAFE_SHIFT)
    return "safe" in map(str, found)


def _with_shifts(func: PrimFunc) -> PrimFunc:
    """The same with `SHIFT` as the names of buffers, which loops keep where blocks go; no other is called so."""
    blocks = [each.block for each in block_realizes(func)]
    written = {block: {store.buffer for store in tir.collect(block.body, tirx.BufferStore)} for block in blocks}
    shifts = {buffer for block in blocks if _is_shift(block) for buffer in written[block]}
    wrong = {each for buffers in written.values() for each in buffers if is_shift(each) != (each in shifts)}
    made = {var: tirx.Var(SHIFTS[0] if var in shifts else "values", var.ty) for var in wrong}
    func = tvm_ffi.structural_map(func, (tirx.Var, lambda var: made.get(var, var))) if made else func

    def bare(block: SBlock) -> SBlock:
        kept = {name: value for name, value in block.annotations.items() if name not in SHIFT}
        return _block(block, str(block.name_hint), kept) if _is_shift(block) else block

    return _mapped(func, bare) if shifts else func


def _is_shift(block: SBlock) -> bool:
    return any(name in block.annotations for name in SHIFT)


def _mapped(func: PrimFunc, change: Callable[[SBlock], SBlock]) -> PrimFunc:
    return tvm_ffi.structural_map(func, (s_tir.SBlock, change))


def _block(block: SBlock, name: str, annotations: object) -> SBlock:
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        name,
        block.body,
        init=block.init,
        alloc_buffers=block.alloc_buffers,
        match_buffers=block.match_buffers,
        annotations=annotations,
    )
