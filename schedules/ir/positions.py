"""Positions in spaces whose sizes are known at the call alone: what TVM's arithmetic does not divide by a symbol."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import tvm_ffi
from tvm import tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Expr, Size, Var

__all__ = ["Positions", "simplify", "step"]

Monomial = tuple[int, ...]
"""The atoms that are multiplied, by their numbers, in order."""
Polynomial = dict[Monomial, int]


def simplify(expr: Expr, extents: Mapping[Var, Size]) -> Expr:
    """Return `expr` simplified, as `tir.simplify` does, and divided by symbols where all is a number of whole ones.

    `(b * T + t) // T → b` and `(b * T + t) % T → t` for t below T.
    """
    made = tir.simplify(expr, extents)
    if all(tir.as_int(node.b) is not None for node in tir.collect(made, (tirx.FloorDiv, tirx.FloorMod))):
        return made
    return tir.simplify(Positions(extents).divided(made), extents)


def step(position: Expr, var: Var, extents: Mapping[Var, Size]) -> Expr | None:
    """Return how far `position` goes with each step of `var`, an expression of sizes; None if not always as far."""
    known = tir.stride(position, var, extents)
    if known is not None:
        return tir.index_const(known)
    return Positions(extents).step(position, var)


class Positions:
    """Arithmetic of polynomials in variables that run from 0 up to their extents, and in sizes."""

    def __init__(self, extents: Mapping[Var, Size]) -> None:
        self.extents = extents
        self._atoms: list[Expr] = []
        self._positive = [var for extent in extents.values() for var in _factors(extent)]

    def divided(self, expr: Expr) -> Expr:
        """Return `expr` with each quotient and remainder by sizes taken apart, where that can be shown."""

        def quotient(node: tirx.FloorDiv) -> Expr:
            found = self._parts(node.a, node.b)
            return self._expr(found[0], node) if found is not None else node

        def remainder(node: tirx.FloorMod) -> Expr:
            found = self._parts(node.a, node.b)
            return self._expr(found[1], node) if found is not None else node

        return tvm_ffi.structural_map(expr, [(tirx.FloorDiv, quotient), (tirx.FloorMod, remainder)])

    def step(self, position: Expr, var: Var) -> Expr | None:
        """Return how far `position` goes with each step of `var`, of sizes alone; None if not always as far."""
        following = self._polynomial(tir.substitute(position, {var: var + 1}))
        found = _sum(following, _times(self._polynomial(position), {(): -1}))
        used = {at for monomial in found for at in monomial}
        known = (isinstance(self._atoms[at], tirx.Var) and self._atoms[at] not in self.extents for at in used)
        return self._expr(found, position) if all(known) else None

    def _parts(self, value: Expr, by: Expr) -> tuple[Polynomial, Polynomial] | None:
        """The quotient and the remainder, if what is no multiple of `by` stays below it."""
        if tir.as_int(by) is not None:
            return None
        dividend, divisor = self._polynomial(value), self._polynomial(by)
        if len(divisor) != 1 or any(var in self.extents for var in tir.variables(by)):
            return None
        ((atoms, factor),) = divisor.items()
        whole: Polynomial = {}
        rest: Polynomial = {}
        for monomial, times in dividend.items():
            left = _without(monomial, atoms)
            if left is not None and factor > 0 and times % factor == 0:
                whole[left] = times // factor
            else:
                rest[monomial] = times
        most, least = self._bound(rest, upper=True), self._bound(rest, upper=False)
        if most is None or least is None:
            return None
        below = _sum(divisor, _times(most, {(): -1}), {(): -1})
        return (whole, rest) if self._is_positive(below) and self._is_positive(least) else None

    def _bound(self, value: Polynomial, *, upper: bool) -> Polynomial | None:
        """The most, or the least, that a polynomial is, of sizes alone; None where it has what is not bounded."""
        found: Polynomial = {}
        for monomial, times in value.items():
            part: Polynomial = {(): times}
            for at in monomial:
                atom = self._atoms[at]
                if not isinstance(atom, tirx.Var):
                    return None
                extent = self.extents.get(atom)
                if extent is None:
                    part = _times(part, {(at,): 1})
                elif (times > 0) == upper:
                    part = _times(part, _sum(self._polynomial(tir.size(extent)), {(): -1}))
                else:
                    part = {}
            found = _sum(found, part)
        return found

    def _is_positive(self, value: Polynomial) -> bool:
        """Whether a polynomial of sizes is 0 or more: it is, written in what they are more than the least, if its
        factors are. Sizes of axes are 1 or more, or nothing is computed; others 0."""
        for at in sorted({at for monomial in value for at in monomial}):
            if any(tir.same_var(self._atoms[at], var) for var in self._positive):
                value = self._moved(value, at)
        return all(times >= 0 for times in value.values())

    def _moved(self, value: Polynomial, at: int) -> Polynomial:
        """The polynomial with `atom + 1` for an atom."""
        found: Polynomial = {}
        for monomial, times in value.items():
            part: Polynomial = {tuple(each for each in monomial if each != at): times}
            for _ in range(monomial.count(at)):
                part = _times(part, {(at,): 1, (): 1})
            found = _sum(found, part)
        return found

    def _polynomial(self, expr: Expr) -> Polynomial:
        known = tir.as_int(expr)
        if known is not None:
            return {(): known} if known else {}
        if isinstance(expr, tirx.Add):
            return _sum(self._polynomial(expr.a), self._polynomial(expr.b))
        if isinstance(expr, tirx.Sub):
            return _sum(self._polynomial(expr.a), _times(self._polynomial(expr.b), {(): -1}))
        if isinstance(expr, tirx.Mul):
            return _times(self._polynomial(expr.a), self._polynomial(expr.b))
        return {(self._atom(expr),): 1}

    def _atom(self, expr: Expr) -> int:
        for at, other in enumerate(self._atoms):
            if expr.same_as(other) or (not isinstance(expr, tirx.Var) and tir.same(expr, other)):
                return at
        self._atoms.append(expr)
        return len(self._atoms) - 1

    def _expr(self, value: Polynomial, like: Expr) -> Expr:
        total = tir.zero(like)
        for monomial, times in value.items():
            term: Expr = tirx.const(times, str(like.ty.dtype))
            for at in monomial:
                term = self._atoms[at] * term
            total = total + term
        return total


def _factors(extent: Size) -> list[Var]:
    """The variables of a product of sizes: each is 1 or more where the product is."""
    if isinstance(extent, tirx.Mul):
        return [*_factors(extent.a), *_factors(extent.b)]
    return [extent] if isinstance(extent, tirx.Var) else []


def _without(monomial: Monomial, atoms: Monomial) -> Monomial | None:
    left = list(monomial)
    for at in atoms:
        if at not in left:
            return None
        left.remove(at)
    return tuple(left)


def _sum(*parts: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for part in parts:
        for monomial, times in part.items():
            found[monomial] = found.get(monomial, 0) + times
    return {monomial: times for monomial, times in found.items() if times}


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    return _sum(*({tuple(sorted((*m, *n))): prod((x, y))} for m, x in a.items() for n, y in b.items()))
