"""What a PrimFunc computes of one element, where it does the same to each; and a digest of what it computes at all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import Expr, PrimFunc, SBlock, Size, Var

__all__ = ["Scalar", "scalar_of", "structure_of"]

_NOT_OF_THE_WORK = ("global_symbol", "op_pattern", "relaxc.kernel")
"""Attributes that say what a function is called, whether it may be fused and what kernel it is."""

_OF_ALL = {*_NOT_OF_THE_WORK, "tirx.noalias", "s_tir"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """An operation on scalars; or, with `operand`, the element of it that has these `axes` of the result's place."""

    name: str
    inputs: tuple[Scalar, ...] = ()
    dtype: str = ""
    operand: int | None = None
    axes: tuple[int, ...] = ()


def structure_of(func: PrimFunc) -> str:
    """Return 16 hex digits that PrimFuncs share which compute the same in the same loops, whatever the names."""
    for name in _NOT_OF_THE_WORK:
        if func.attrs is not None and name in func.attrs:
            func = func.without_attr(name)
    structure = tvm_ffi.structural_hash(func) & (2**64 - 1)
    return hashlib.sha256(f"{structure:016x}".encode()).hexdigest()[:16]


def scalar_of(func: PrimFunc) -> Scalar | None:
    """Return what `func` computes of each place of its result; None where that is more than operations on the elements
    at this place, or at this place along some axes.
    """
    if func.attrs is not None and not _OF_ALL.issuperset(func.attrs.keys()):
        return None
    try:
        found = _Reader(func).result()
    except _NotScalar:
        return None
    return found if found.inputs else None


class _NotScalar(Exception):
    """The PrimFunc does something else than operations on elements."""


class _Reader:
    """Inlines the blocks of a PrimFunc into each other, as far as each is elementwise."""

    def __init__(self, func: PrimFunc) -> None:
        self._params = {param: at for at, param in enumerate(func.params)}
        self._result = func.params[-1]
        self._blocks: dict[Any, SBlock] = {}
        self._known: dict[tuple[Any, tuple[int, ...]], Scalar] = {}
        for realize in block_realizes(func):
            store = _store(realize)
            if store.buffer in self._blocks:
                raise _NotScalar
            self._blocks[store.buffer] = realize.block

    def result(self) -> Scalar:
        return self._of(self._result, tuple(at for at, size in enumerate(self._result.shape) if tir.as_int(size) != 1))

    def _of(self, buffer: Any, axes: tuple[int, ...]) -> Scalar:
        """The element at the place that has these axes of the result's, one for each of the buffer's longer than 1."""
        key = buffer, axes
        if key not in self._known:
            self._known[key] = self._made(buffer, axes)
        return self._known[key]

    def _made(self, buffer: Any, axes: tuple[int, ...]) -> Scalar:
        block = self._blocks.get(buffer)
        if block is None:
            if buffer not in self._params or buffer.same_as(self._result):
                raise _NotScalar
            return Scalar("", (), str(buffer.dtype), self._params[buffer], axes)
        rest = list(axes)
        places: dict[Var, int | None] = {}
        for each, size in zip(block.iter_vars, buffer.shape, strict=True):
            places[each.var] = rest.pop(0) if tir.as_int(size) != 1 else None
        return self._value(block.body.value, places)

    def _value(self, expr: Expr, places: Mapping[Var, int | None]) -> Scalar:
        from tvm import tirx
        from tvm.ir import Call, StringImm, TensorLoad

        if isinstance(expr, TensorLoad):
            return self._of(expr.source, self._axes(expr, places))
        dtype = str(expr.ty.dtype)
        if isinstance(expr, tirx.FloatImm | tirx.IntImm):
            return Scalar(f"constant {expr.value!r}", (), dtype)
        if isinstance(expr, Call):
            name, args = str(getattr(expr.op, "name", "")), list(expr.args)
            if not name:
                raise _NotScalar
            words = [str(arg.value) for arg in args if isinstance(arg, StringImm)]
            args = [arg for arg in args if not isinstance(arg, StringImm)]
            name = " ".join([name.removeprefix("tirx."), *words])
        elif isinstance(expr, tirx.Select):
            name, args = "select", [expr.condition, expr.true_value, expr.false_value]
        elif isinstance(expr, tirx.Cast):
            name, args = "cast", [expr.value]
        elif isinstance(expr, tirx.Not):
            name, args = "not", [expr.a]
        elif hasattr(expr, "a") and hasattr(expr, "b"):
            name, args = type(expr).__name__.lower(), [expr.a, expr.b]
        else:
            raise _NotScalar
        return Scalar(name, tuple(self._value(arg, places) for arg in args), dtype)

    def _axes(self, load: Any, places: Mapping[Var, int | None]) -> tuple[int, ...]:
        """The axes of the result that a load goes along; it has all of each, or is one long there."""
        found: list[int] = []
        for index, size in zip(load.indices, load.source.shape, strict=True):
            is_axis = index in places
            if tir.as_int(size) == 1 and (is_axis or tir.as_int(index) == 0):
                continue
            place = places[index] if is_axis else None
            if place is None or not _same(size, self._result.shape[place]):
                raise _NotScalar
            found.append(place)
        return tuple(found)


def _same(one: Size, other: Size) -> bool:
    known = tir.as_int(one), tir.as_int(other)
    return known[0] == known[1] if None not in known else bool(tir.same_size(one, other))


def _store(realize: Any) -> Any:
    """The store of a block that writes each element of a buffer once, at its own variables."""
    from tvm import tirx

    block = realize.block
    spatial = all(each.iter_type == tirx.IterVar.DataPar for each in block.iter_vars)
    plain = spatial and block.init is None and not block.match_buffers and not len(block.annotations)
    if not plain or not isinstance(block.body, tirx.BufferStore) or tir.as_int(realize.predicate) != 1:
        raise _NotScalar
    indices, axes = block.body.indices, block.iter_vars
    if len(indices) != len(axes) or not all(each.var.same_as(at) for each, at in zip(axes, indices, strict=True)):
        raise _NotScalar
    return block.body
