"""What a PrimFunc that reduces computes: groups, sums over the members of each, and results made of these."""

from __future__ import annotations

from dataclasses import dataclass

from relaxc.schedules.cuda.common.sizes import guess
from relaxc.schedules.cuda.elementwise.form import Form, Step
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, Expr, Size, Var

__all__ = ["Reductions", "Space", "Sum", "steps_for"]

_GUESSED_MEMBERS = 256


@dataclass(frozen=True)
class Sum:
    """`var` is what `value` over all members of `space` is reduced to, from `start`; `dtype` is that of its buffer."""

    var: Var
    kind: str
    dtype: str
    start: Expr
    space: int
    value: Expr


@dataclass(frozen=True)
class Space:
    """Members of a group, in `form`: its first axes are those of groups, the rest those of members.

    Where lanes are `across` groups, the last axis is one of groups as well. `members` are how many there are.
    """

    form: Form
    members: Size


@dataclass(frozen=True)
class Reductions:
    """`out[g, m] = f(operands, sums of g)`: for each member m of each group g, or one of each group.

    `groups` are the sizes of the groups' axes. The first space is that of the result. `across`: neighbours in memory
    are of other groups, as the columns of a matrix whose rows are added up.
    """

    out: Buffer
    groups: tuple[Size, ...]
    across: bool
    spaces: tuple[Space, ...]
    sums: tuple[Sum, ...]

    @property
    def symbols(self) -> tuple[Var, ...]:
        """The sizes that are known at the call alone."""
        return self.spaces[0].form.symbols

    @property
    def group_count(self) -> int:
        """How many groups there are; where that is known at the call alone, a guess."""
        return guess(tir.product(list(self.groups)))

    def members_of(self, space: int) -> int:
        """Return how many members a group has in a space; where that is known at the call alone, a guess."""
        known = tir.as_int(self.spaces[space].members)
        return _GUESSED_MEMBERS if known is None else known

    def terms_of(self, space: int) -> list[Expr]:
        """Return what the sums over a space add up."""
        return [each.value for each in self.sums if each.space == space]


def steps_for(form: Form, values: list[Expr]) -> list[Step]:
    """Return the steps that the values are made of, in their order."""
    needed = [var for value in values for var in tir.variables(value)]
    found: list[Step] = []
    for step in reversed(form.steps):
        if any(step.var.same_as(var) for var in needed):
            found.append(step)
            needed += tir.variables(step.value)
    return found[::-1]
