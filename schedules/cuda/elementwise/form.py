"""What a PrimFunc that reduces nothing computes: one value for each element of its result, of operands at addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tvm import tirx

from relaxc.schedules.cuda.common.sizes import guess
from relaxc.schedules.ir import positions, tir
from relaxc.schedules.ir.types import Buffer, Expr, Size, Var

__all__ = ["Form", "Guard", "Operand", "Step", "simplify_where"]


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition that `holds`, or does not, where a value is needed. Two are the same if they are one object."""

    condition: Expr
    holds: bool


@dataclass(frozen=True)
class Operand:
    """The element of `buffer` at the position `at` is the value of `var`; it may be read only where the guards hold."""

    var: Var
    buffer: Buffer
    at: Expr
    guards: tuple[Guard, ...]


@dataclass(frozen=True)
class Step:
    """An intermediate value of `dtype`: `var` stands for it."""

    var: Var
    value: Expr
    dtype: str


@dataclass(frozen=True)
class Form:
    """`out[axes] = value`: in expressions of the axes, of operands, and of steps, which come in their order.

    `place` is the position of an element in `out`, of the axes, which may be fewer or more than its dims. Sizes may be
    expressions of `symbols`, which are known at the call.
    """

    out: Buffer
    axes: tuple[Var, ...]
    sizes: tuple[Size, ...]
    place: Expr
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    value: Expr
    symbols: tuple[Var, ...] = ()

    @property
    def bounds(self) -> dict[Var, Size]:
        """The extents of the axes."""
        return dict(zip(self.axes, self.sizes, strict=True))

    @property
    def elements(self) -> int:
        """How many the result has; where that is known at the call alone, a guess."""
        return guess(tir.product(list(self.sizes)))


def simplify_where(expr: Expr, bounds: Mapping[Var, Size], guards: Sequence[Guard]) -> Expr:
    """Return `expr` simplified, given the extents of its variables and that the guards are as they shall be."""
    analyzer = tir.analyzer_of(bounds)
    with ExitStack() as scopes:
        for guard in guards:
            scopes.enter_context(analyzer.constraint_scope(_condition(guard)))
        ranges = {var: analyzer.const_int_bound(var) for var in bounds}
        expr = analyzer.simplify(expr)
    if any(tir.as_int(extent) is None for extent in bounds.values()):
        return positions.simplify(expr, bounds)
    # What a guard cuts off below is taken off: so (i - 1) // 14 * 14 + (i - 1) % 14 is i - 1 where i is not 0.
    low = {var: max(0, int(found.min_value)) for var, found in ranges.items()}
    extents = {var: min(int(bounds[var]), int(found.max_value) + 1) - low[var] for var, found in ranges.items()}
    if extents == dict(bounds) or any(extent <= 0 for extent in extents.values()):
        return expr
    cut = [var for var, least in low.items() if least]
    shifted = tir.substitute(expr, {var: var + low[var] for var in cut})
    return tir.substitute(tir.simplify(shifted, extents), {var: var - low[var] for var in cut})


def _condition(guard: Guard) -> Expr:
    """What must be true; TVM's analyzer learns nothing from a `not` before a comparison."""
    condition = guard.condition
    if guard.holds:
        return condition
    for kind, opposite in ((tirx.LT, tirx.GE), (tirx.LE, tirx.GT), (tirx.GT, tirx.LE), (tirx.GE, tirx.LT)):
        if isinstance(condition, kind):
            return opposite(condition.a, condition.b)
    return tirx.Not(condition)
