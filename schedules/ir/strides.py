"""An elementwise block over as few axes as its accesses allow, with the stride of each access along each axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, BufferStore, Expr, IterVar, SBlock, Size, Var

__all__ = ["Access", "Axis", "Strided", "nested", "strided"]


@dataclass(frozen=True)
class Axis:
    """Adjacent axes of a block as one, of `extent`; a symbolic one stands alone."""

    vars: tuple[Var, ...]
    sizes: tuple[Size, ...]

    @property
    def extent(self) -> Any:
        """Its length: an int, or an expression."""
        return tir.product(list(self.sizes))

    def indices(self, position: Expr) -> dict[Var, Expr]:
        """Return the block's variables at a position along it."""
        return dict(zip(self.vars, tir.unflatten(position, [tir.size(size) for size in self.sizes]), strict=True))


@dataclass(frozen=True)
class Access:
    """A load, or the store: `node` has its indices; `strides`, in elements, along the axes, None where not constant."""

    node: TensorLoad | BufferStore
    buffer: Buffer
    strides: tuple[int | None, ...]

    def offset(self, axes: Sequence[Axis], positions: Sequence[Expr], fixed: dict[Var, Expr]) -> Expr:
        """Return the element, counted from the buffer's first, at `positions` along the axes."""
        values, total = dict(fixed), tir.index_const(0)
        for axis, position, stride in zip(axes, positions, self.strides, strict=True):
            if stride is None:
                values |= axis.indices(position)
                continue
            values |= {var: tir.zero(var) for var in axis.vars}
            total = total + position * stride
        start = tir.flatten(self.node.indices, self.buffer.shape)
        return tir.simplify(tir.substitute(start, values)) + total

    def element(self, axes: Sequence[Axis], positions: Sequence[Expr], fixed: dict[Var, Expr]) -> Expr:
        """Return a load at `positions` along the axes."""
        indices = self.at(self.offset(axes, positions, fixed))
        return self.buffer[tuple(indices)] if indices else tirx.BufferLoad(self.buffer, [])

    def at(self, offset: Expr) -> list[Expr]:
        """Return the indices of the element at `offset`: all in the last, which lowering adds up to the same address.

        Indices of each dim are divisions and remainders of the offset, which TVM's simplifier does not always put
        together again, and then every element is gathered on its own.
        """
        zeros = [tir.index_const(0) for _ in self.buffer.shape[1:]]
        return [*zeros, offset] if len(self.buffer.shape) else []


@dataclass(frozen=True)
class Strided:
    """An elementwise block: `axes` from the outermost, its `store` of `body`'s value, and its `loads`.

    `ones` are the axes of length 1. `block` is as it was.
    """

    block: SBlock
    body: BufferStore
    axes: tuple[Axis, ...]
    ones: dict[Var, Expr]
    store: Access
    loads: tuple[Access, ...]

    def value(self, positions: Sequence[Expr], replaced: Mapping[int, Expr] | None = None) -> Expr:
        """Return what is stored at `positions` along the axes, with these values for the loads in `replaced`."""

        def loaded(load: TensorLoad) -> Expr:
            index = next(i for i, access in enumerate(self.loads) if tir.same(access.node, load))
            if replaced is not None and index in replaced:
                return replaced[index]
            access = self.loads[index]
            return access.element(self.axes, positions, self.ones)

        values = dict(self.ones)
        for axis, position in zip(self.axes, positions, strict=True):
            values |= axis.indices(position)
        return tir.substitute(tvm_ffi.structural_map(self.body.value, (TensorLoad, loaded)), values)


def strided(block: SBlock, params: Sequence[Buffer]) -> Strided | None:
    """Return an elementwise `block` between buffers of `params`, with its axes coalesced; None for gathers or in place.

    Neighbours become one axis where every access goes on from the end of the inner one in the step that it has along
    it, as in the coalescing of torch's TensorIterator. Axes that conditions or values use on their own stay apart.
    """
    touched = [block.body.buffer, *(load.source for load in tir.loads(block.body.value))]
    if not all(any(buffer.same_as(param) for param in params) for buffer in touched):
        return None
    if any(buffer.same_as(touched[0]) for buffer in touched[1:]):
        return None
    if any(tir.as_int(iv.dom.extent) == 0 for iv in block.iter_vars):
        return None
    if any(tir.loads(list(load.indices)) for load in tir.loads(block.body.value)):
        return None
    ones = {iv.var: tir.zero(iv.var) for iv in block.iter_vars if tir.as_int(iv.dom.extent) == 1}
    store, axes = _split(block, ones)
    loads = _distinct(tir.loads(store.value))
    accesses = [_access(node, node.buffer if node is store else node.source, axes) for node in (store, *loads)]
    axes, accesses = _coalesced(axes, accesses, _used_bare(store.value))
    return Strided(block, store, tuple(axes), ones, accesses[0], tuple(accesses[1:]))


def _split(block: SBlock, ones: dict[Var, Expr]) -> tuple[BufferStore, list[Axis]]:
    """The store over the axes longer than 1, each cut where an index divides it, as `x[j // 64, i, j % 64]` does."""
    values: dict[Var, Expr] = dict(ones)
    axes: list[Axis] = []
    for iv in block.iter_vars:
        if iv.var in ones:
            continue
        sizes = _cut(iv, block)
        parts = [iv.var] if len(sizes) == 1 else [tir.fresh(f"{iv.var.name}_{i}") for i in range(len(sizes))]
        if len(sizes) > 1:
            values[iv.var] = tir.flatten(parts, sizes)
        axes += [Axis((part,), (size,)) for part, size in zip(parts, sizes, strict=True)]
    extents = {axis.vars[0]: axis.sizes[0] for axis in axes}

    def simpler(load: TensorLoad) -> Expr:
        return load.source[tuple(tir.simplify(index, extents) for index in load.indices)] if load.indices else load

    store = tir.substitute(block.body, values)
    value = tvm_ffi.structural_map(store.value, (TensorLoad, simpler))
    return tirx.BufferStore(store.buffer, value, [tir.simplify(index, extents) for index in store.indices]), axes


def _cut(iv: IterVar, block: SBlock) -> list[Size]:
    """The sizes that the axis falls into, by the divisors of the quotients and remainders that indices take of it."""
    extent = tir.as_int(iv.dom.extent)
    if extent is None:
        return [iv.dom.extent]
    found: set[int] = set()
    for load in tir.loads(block.body.value):
        for node in tir.collect(list(load.indices), (tirx.FloorDiv, tirx.FloorMod)):
            divisor = tir.as_int(node.b)
            step = tir.stride(node.a, iv.var, {iv.var: iv.dom.extent})
            if divisor and step and divisor % step == 0 and extent % (divisor // step) == 0:
                found.add(divisor // step)
    return [*nested(extent, found)]


def nested(extent: int, divisors: Iterable[int]) -> list[int]:
    """Return the sizes of axes, outermost first, that an axis falls into by the `divisors` that divide each other."""
    sizes: list[int] = []
    inner = 1
    for divisor in sorted(divisors):
        if inner < divisor < extent and divisor % inner == 0:
            sizes.insert(0, divisor // inner)
            inner = divisor
    return [extent // inner, *sizes]


def _distinct(loads: list[TensorLoad]) -> list[TensorLoad]:
    found: list[TensorLoad] = []
    for load in loads:
        if not any(tir.same(load, other) for other in found):
            found.append(load)
    return found


def _access(node: TensorLoad | BufferStore, buffer: Buffer, axes: list[Axis]) -> Access:
    start = tir.flatten(node.indices, buffer.shape)
    extents = {axis.vars[0]: axis.sizes[0] for axis in axes}
    return Access(node, buffer, tuple(tir.stride(start, axis.vars[0], extents) for axis in axes))


def _used_bare(value: Expr) -> list[Var]:
    """The variables that `value` uses outside of the indices of its loads."""
    return tir.variables(tvm_ffi.structural_map(value, (TensorLoad, lambda load: tirx.const(0, str(load.ty.dtype)))))


def _coalesced(axes: list[Axis], accesses: list[Access], bare: list[Var]) -> tuple[list[Axis], list[Access]]:
    at = len(axes) - 2
    while at >= 0:
        outer, inner = axes[at], axes[at + 1]
        if _continue(at, inner, accesses) and not any(var in bare for var in (*outer.vars, *inner.vars)):
            axes = [*axes[:at], Axis((*outer.vars, *inner.vars), (*outer.sizes, *inner.sizes)), *axes[at + 2 :]]
            accesses = [Access(a.node, a.buffer, (*a.strides[:at], *a.strides[at + 1 :])) for a in accesses]
        at -= 1
    return axes, accesses


def _continue(at: int, inner: Axis, accesses: list[Access]) -> bool:
    """Whether one step along axis `at` is for every access as far as the whole of the axis `inner` behind it."""
    extent = inner.extent
    if not isinstance(extent, int):
        return False
    for access in accesses:
        step, inner_step = access.strides[at], access.strides[at + 1]
        if step is None or inner_step is None or step != inner_step * extent:
            return False
    return True
