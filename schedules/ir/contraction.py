"""Contractions: sums of products found in a PrimFunc, and the roles of their axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import Expr, IterVar, PrimFunc, SBlock, Size, Var
from relaxc.schedules.template import Declined

__all__ = ["Contraction", "accumulation_dtype", "find"]

_SHORT_FLOATS = ("float16", "bfloat16")


@dataclass(frozen=True)
class Contraction:
    """`C[b, m, n] = sum over k of left(b, m, k) * right(b, k, n)`, where n holds C's contiguous dim.

    The axes of a group are flattened row-major. `left` and `right` are expressions over all axes; what they load is of
    the types `operands`, and the products are summed in `dtype`, which is fp32 for 16-bit floats. `origin` gives each
    spatial variable of the block from the axes: a variable of extent 1 is 0, that of a grouped convolution's channels
    is `group * channels + channel`.
    """

    block: SBlock
    b: tuple[Var, ...]
    m: tuple[Var, ...]
    n: tuple[Var, ...]
    k: tuple[Var, ...]
    extents: dict[Var, Size]
    origin: dict[Var, Expr]
    left: Expr
    right: Expr
    operands: tuple[str, str]
    dtype: str

    @property
    def reduced(self) -> list[Var]:
        """The reduction axes of the block, those of extent 1 included."""
        return [iv.var for iv in self.block.iter_vars if iv.iter_type == tirx.IterVar.CommReduce]

    def size(self, axes: Sequence[Var]) -> Any:
        """Return the size of a group of axes: an int, or an expression where it is symbolic."""
        return tir.product([self.extents[axis] for axis in axes])

    def at(self, expr: Expr, **positions: Expr) -> Expr:
        """Return `expr` with the flattened positions of some groups (`b`, `m`, `n`, `k`) put in."""
        values: dict[Var, Expr] = {}
        for group, position in positions.items():
            axes = getattr(self, group)
            indices = tir.unflatten(position, [self.extents[axis] for axis in axes])
            values.update(zip(axes, indices, strict=True))
        return tir.substitute(expr, values)


def find(func: PrimFunc) -> Contraction | Declined:
    """Find the one contraction of `func`, whose producers must be inlined already."""
    reductions = [r.block for r in block_realizes(func) if r.block.init is not None]
    if len(reductions) != 1:
        return Declined(f"it has {len(reductions)} reduction blocks, not one")
    block = reductions[0]
    if not isinstance(block.body, tirx.BufferStore) or not isinstance(block.init, tirx.BufferStore):
        return Declined("the reduction's body is not one store")
    operands = _operands(block)
    return operands if isinstance(operands, Declined) else _classify(block, *operands)


def accumulation_dtype(result: str) -> str:
    """Return the type that sums of products are made in whose result is of type `result`: fp32 for 16-bit floats."""
    return "float32" if result in _SHORT_FLOATS else result


def _stored_dtype(operand: Expr) -> str:
    """The type of an operand before it is cast to that of the sum."""
    while isinstance(operand, tirx.Cast):
        operand = operand.value
    return str(operand.ty.dtype)


def _operands(block: SBlock) -> tuple[Expr, Expr] | Declined:
    """left and right of `C[i] = C[i] + left * right`, the init being zero."""
    value, init = block.body.value, block.init.value
    if float(getattr(init, "value", 1)) != 0:
        return Declined("the reduction does not start at zero")
    if not isinstance(value, tirx.Add) or not tir.loads_what_it_stores(value.a, block.body):
        return Declined("the reduction is not a sum")
    term = value.b.value if isinstance(value.b, tirx.Cast) else value.b
    if not isinstance(term, tirx.Mul):
        return Declined("the summed term is not a product")
    if not isinstance(value.b, tirx.Cast):
        return term.a, term.b
    exact = accumulation_dtype(str(term.ty.dtype)) != str(term.ty.dtype)  # an integer product may wrap before the cast
    return (term.a, term.b) if exact else Declined("the product is cast before it is summed")


def _classify(block: SBlock, a: Expr, b: Expr) -> Contraction | Declined:
    extents = {iv.var: _extent(iv) for iv in block.iter_vars}
    spatial = [iv.var for iv in block.iter_vars if iv.iter_type == tirx.IterVar.DataPar]
    k = [iv.var for iv in block.iter_vars if iv.iter_type == tirx.IterVar.CommReduce]
    if len(spatial) + len(k) != len(block.iter_vars):
        return Declined("the block has axes that are neither parallel nor reduced")
    ordered = _axes_written(block.body.indices, spatial)
    if isinstance(ordered, Declined):
        return ordered
    if not ordered or set(spatial) != set(ordered):
        return Declined("the result has no axes, or not all of them")
    origin: dict[Var, Expr] = {var: var for var in spatial}
    for var in [*spatial, *k]:
        if extents[var] == 1:
            zero = {var: tir.zero(var)}
            a, b = tir.substitute(a, zero), tir.substitute(b, zero)
            origin |= zero if var in origin else {}
    ordered = [var for var in ordered if extents[var] != 1] or ordered[-1:]
    ordered, a, b = _split_groups(ordered, a, b, extents, origin)
    if tir.uses(a, ordered[-1:]):
        a, b = b, a
    in_a, in_b = set(tir.uses(a, ordered)), set(tir.uses(b, ordered))
    batch = tuple(var for var in ordered if var in in_a and var in in_b)
    n = tuple(var for var in ordered if var in in_b and var not in in_a)
    m = tuple(var for var in ordered if var not in in_b)
    if ordered[-1] in batch:
        return Declined("both operands use the contiguous axis of the result")
    if not n:
        n, m = m[-1:], m[:-1]
    (outer_m, m), (outer_n, n) = _static_suffix(m, extents), _static_suffix(n, extents)
    batch = (*batch, *outer_m, *outer_n)
    result = str(block.body.buffer.dtype)
    dtype = accumulation_dtype(result)
    operands = (_stored_dtype(a), _stored_dtype(b))
    real_k = tuple(var for var in k if extents[var] != 1)
    left, right = a.astype(dtype), b.astype(dtype)
    return Contraction(block, batch, m, n, real_k, extents, origin, left, right, operands, dtype)


def _static_suffix(axes: tuple[Var, ...], extents: dict[Var, Size]) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
    """Outer and inner part of a group: of several axes, a symbolic one is flattened with no other.

    TVM cannot prove that blocks of 4 cover n * 7 rows; it can for n, and for 7.
    """
    count = 0
    while count < len(axes) and isinstance(extents[axes[-1 - count]], int):
        count += 1
    split = 0 if count == len(axes) else len(axes) - max(1, count)
    return axes[:split], axes[split:]


def _axes_written(indices: Sequence[Expr], spatial: Sequence[Var]) -> list[Var] | Declined:
    """The spatial variables in the order of the result's dims; a dim may be a constant."""
    found: list[Var] = []
    for index in indices:
        if tir.as_int(index) is not None:
            continue
        if not isinstance(index, tirx.Var) or index not in spatial or index in found:
            return Declined("the result is not written at plain indices")
        found.append(index)
    return found


def _split_groups(
    ordered: list[Var], a: Expr, b: Expr, extents: dict[Var, Size], origin: dict[Var, Expr]
) -> tuple[list[Var], Expr, Expr]:
    """Splits a channel axis that one operand uses as `c // size` only into group and channel."""
    split: list[Var] = []
    for var in ordered:
        sizes = {s for operand in (a, b) for s in [_group_size(operand, var)] if s is not None}
        extent = extents[var]
        if len(sizes) != 1 or not isinstance(extent, int) or extent % min(sizes):
            split.append(var)
            continue
        inner = min(sizes)
        group, channel = tirx.Var(f"{var.name}_group", var.ty.dtype), tirx.Var(f"{var.name}_channel", var.ty.dtype)
        extents |= {group: extent // inner, channel: inner}
        origin[var] = group * inner + channel
        a, b = (tir.simplify(tir.substitute(x, {var: origin[var]}), extents) for x in (a, b))
        split += [group, channel]
    return split, a, b


def _group_size(expr: Expr, var: Var) -> int | None:
    """`size` where every use of `var` in `expr` is `var // size`, size > 1."""
    divisions = [d for d in tir.collect(expr, tirx.FloorDiv) if isinstance(d.a, tirx.Var) and d.a.same_as(var)]
    occurrences = [v for v in tir.collect(expr, tirx.Var) if v.same_as(var)]
    sizes = {tir.as_int(d.b) for d in divisions}
    if not divisions or len(divisions) != len(occurrences) or len(sizes) != 1:
        return None
    return next(iter(sizes))


def _extent(iter_var: IterVar) -> Size:
    known = tir.as_int(iter_var.dom.extent)
    return iter_var.dom.extent if known is None else known
