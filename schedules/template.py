"""The contract of a schedule rule: a template with named parameters that takes a PrimFunc or says why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol, runtime_checkable

from relaxc.schedules.ir.types import PrimFunc, Target

__all__ = ["Choices", "Declined", "Distinct", "Free", "Parameters", "Points", "Rule", "Schedule", "check"]

Parameters = Mapping[str, int]
"""The values of a template's parameters by name: tile sizes, unroll factors, and 0 or 1 for a switch."""

Choices = Mapping[str, tuple[int, ...]]
"""The values that each parameter of a template may take for one PrimFunc."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A scheduled PrimFunc and the parameters that made it: applying the rule with them gives it again."""

    func: PrimFunc
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declined:
    """A rule does not apply; `reason` is one phrase for a person, such as `the reduction is not a sum`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Points:
    """What a search may try: every combination of `values`, or those that are `listed`, the first of them untuned."""

    values: Choices
    listed: tuple[Parameters, ...] = ()

    @staticmethod
    def of(points: Sequence[Parameters]) -> Points:
        """Return these points, of equal ones the first."""
        listed = [point for at, point in enumerate(points) if point not in points[:at]]
        values = {name: tuple(sorted({point[name] for point in listed})) for name in listed[0]}
        return Points(values, tuple(map(dict, listed)))

    @property
    def size(self) -> int:
        """Return how many there are."""
        return len(self.listed) or prod(map(len, self.values.values()))


class Rule(Protocol):
    """A template: an algorithm with a few named parameters, for one family of PrimFuncs on one target kind.

    `version` rises with every change of the schedules that it makes: records and cached artifacts name it.
    A rule is a value without state; the same PrimFunc, target and parameters always give the same schedule.
    """

    name: str
    version: int

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """Return `func` scheduled for `target` with `parameters`, or with those that the hardware row gives.

        The result computes what `func` computes, for every value of its symbolic sizes. A reduction may be
        summed in another order. Raise `tvm.s_tir.ScheduleError` where TVM refuses a step: the caller takes
        it as a decline. Parameters that are no point of the template are refused with a ValueError.
        """
        ...


@runtime_checkable
class Free(Rule, Protocol):
    """A template whose parameters may be combined freely; `relaxc.schedules.planned.Planned` is the other kind."""

    def choices(self, func: PrimFunc, target: Target) -> Choices | Declined:
        """Return the values of each parameter for `func`: every combination gives a right schedule."""
        ...


@runtime_checkable
class Distinct(Free, Protocol):
    """A template that knows which of its points are different kernels: a search tries no kernel twice."""

    def distinct(self, func: PrimFunc, target: Target) -> Points | Declined:
        """Return a point of each kernel that the device holds, the untuned one first."""
        ...


def check(parameters: Parameters, allowed: Choices) -> None:
    """Raise ValueError where `parameters` is not one point of the space `allowed`."""
    if set(parameters) != set(allowed):
        raise ValueError(f"the template's parameters are {', '.join(allowed)}, not {', '.join(parameters)}")
    for name, value in parameters.items():
        if value not in allowed[name]:
            raise ValueError(f"{name} may be one of {allowed[name]} here, not {value}")
