"""The axes of a form: cut where an address divides them, and joined where every address goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import tirx

from relaxc.schedules.cuda.elementwise.form import Form, Guard, Operand, Step, simplify_where
from relaxc.schedules.ir import positions, tir
from relaxc.schedules.ir.strides import nested
from relaxc.schedules.ir.types import Expr, Node, Size, Var

__all__ = ["coalesced", "continues", "cuts", "with_neighbours_joined"]


def coalesced(form: Form) -> Form:
    """Return the form over as few axes as its addresses allow, none of them of one element."""
    return _joined(_cut(_without_ones(form)))


def _replaced(form: Form, axes: Sequence[Var], sizes: Sequence[Size], values: Mapping[Var, Expr]) -> Form:
    """The form over other axes, of which `values` gives the old ones."""
    bounds = dict(zip(axes, sizes, strict=True))

    def new(expr: Expr) -> Expr:
        return positions.simplify(tir.substitute(expr, values), bounds)

    def guarded(guards: Sequence[Guard]) -> tuple[Guard, ...]:
        return tuple(Guard(new(guard.condition), guard.holds) for guard in guards)

    def moved(operand: Operand) -> Operand:
        guards = guarded(operand.guards)
        at = simplify_where(tir.substitute(operand.at, values), bounds, guards)
        return Operand(operand.var, operand.buffer, at, guards)

    operands = tuple(map(moved, form.operands))
    steps = tuple(Step(step.var, tir.substitute(step.value, values), step.dtype) for step in form.steps)
    value = tir.substitute(form.value, values)
    return Form(form.out, tuple(axes), tuple(sizes), new(form.place), operands, steps, value, form.symbols)


def _without_ones(form: Form) -> Form:
    each = list(zip(form.axes, form.sizes, strict=True))
    kept = [(axis, size) for axis, size in each if tir.as_int(size) != 1]
    ones = {axis: tir.index_const(0) for axis, size in each if tir.as_int(size) == 1}
    return _replaced(form, [axis for axis, _ in kept], [size for _, size in kept], ones)


def _cut(form: Form) -> Form:
    """The form with each axis cut where an address divides it, as `x[j // 64, i, j % 64]` does."""
    axes: list[Var] = []
    sizes: list[Size] = []
    values: dict[Var, Expr] = {}
    for axis, size in zip(form.axes, form.sizes, strict=True):
        found = cuts([operand.at for operand in form.operands], axis, size, form.bounds)
        parts = [axis] if len(found) == 1 else [tir.fresh(f"{axis.name}_{i}") for i in range(len(found))]
        if len(found) > 1:
            values[axis] = tir.flatten(parts, found)
        axes, sizes = [*axes, *parts], [*sizes, *found]
    return _replaced(form, axes, sizes, values) if values else form


def cuts(places: Sequence[Expr], axis: Var, size: Size, bounds: Mapping[Var, Size]) -> list[Size]:
    """Return the sizes of the parts of an axis, the outermost first, that the places divide it into."""
    if not isinstance(size, int):
        return [size]
    found: set[int] = set()
    for node in tir.collect(list(places), (tirx.FloorDiv, tirx.FloorMod)):
        divisor, step = tir.as_int(node.b), tir.stride(node.a, axis, bounds)
        if divisor and step and step > 0 and divisor % step == 0 and size % (divisor // step) == 0:
            found.add(divisor // step)
    return [*nested(size, found)]


def _joined(form: Form) -> Form:
    """The form with neighbouring axes as one where every address goes on behind the inner, as coalescing in torch."""
    at = len(form.axes) - 2
    while at >= 0:
        if continues(form, at):
            form = with_neighbours_joined(form, at)
        at -= 1
    return form


def with_neighbours_joined(form: Form, at: int) -> Form:
    """Return the form with the axes `at` and behind as one, of which `continues` holds."""
    outer, inner = form.axes[at : at + 2]
    both = tir.fresh(f"{outer.name}{inner.name}")
    axes = (*form.axes[:at], both, *form.axes[at + 2 :])
    sizes = (*form.sizes[:at], tir.product(form.sizes[at : at + 2]), *form.sizes[at + 2 :])
    bounds, none = dict(zip(axes, sizes, strict=True)), {outer: tir.index_const(0), inner: tir.index_const(0)}

    def moved(position: Expr) -> Expr:
        each = positions.step(position, inner, form.bounds)
        return positions.simplify(tir.substitute(position, none) + both * each, bounds)

    operands = tuple(replace(operand, at=moved(operand.at)) for operand in form.operands)
    return replace(form, axes=axes, sizes=sizes, place=moved(form.place), operands=operands)


def continues(form: Form, at: int, values: Sequence[Expr] = ()) -> bool:
    """Return whether every address goes on behind the axis that follows `at`, which no value uses by itself."""
    outer, inner = form.axes[at : at + 2]
    bare: list[Node] = [guard.condition for operand in form.operands for guard in operand.guards]
    bare += [*(step.value for step in form.steps), form.value, *values]
    if any(tir.uses(expr, [outer, inner]) for expr in bare):
        return False
    for position in (form.place, *(operand.at for operand in form.operands)):
        step, outer_step = (positions.step(position, axis, form.bounds) for axis in (inner, outer))
        if step is None or outer_step is None:
            return False
        if tir.as_int(tir.simplify(outer_step - step * tir.size(form.sizes[at + 1]))) != 0:
            return False
    return True
