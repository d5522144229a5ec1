"""The contract of a template, the same for CPUs and CUDA: what it takes, its untuned point, its space, its kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, Generic, TypeVar

from relaxc.schedules.hardware import Cpu, Gpu, hardware_of
from relaxc.schedules.ir.types import PrimFunc, Target

__all__ = ["Choices", "Declined", "Form", "NoSuchPoint", "Parameters", "Points", "Rule", "Schedule", "Template"]

Parameters = Mapping[str, int]
"""The values of a template's parameters by name: tile sizes, unroll factors, and 0 or 1 for a switch."""

Choices = Mapping[str, tuple[int, ...]]
"""The values that each parameter of a template may take for one kernel."""

Form = TypeVar("Form")
"""What a template reads of a PrimFunc: an operator with a plan, a contraction, rows."""

Machine = TypeVar("Machine", bound=Cpu | Gpu)


class NoSuchPoint(ValueError):
    """Parameters are no point of a template's space."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A scheduled PrimFunc and the parameters that made it: applying the template with them gives it again."""

    func: PrimFunc
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declined:
    """A template does not apply; `reason` is one phrase for a person, such as `the reduction is not a sum`."""

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


class Template(ABC, Generic[Form, Machine]):
    """An algorithm with a few named parameters, for one family of kernels on one kind of target.

    A subclass says what a PrimFunc is to it (`matched`), which parameters that may have (`default`, `space`,
    `refusal`), and what the kernel is (`emit`); one without parameters says the first and the last alone. `machine` is
    the hardware row. What is asked for a PrimFunc and a target is made of these: `apply`, `points`, `searched`.

    `version` rises with every change of the schedules that it makes: records and cached artifacts name it. A template
    is a value without state; the same PrimFunc, target and parameters always give the same schedule.
    """

    name: str
    version: int
    layout: tuple[str, ...] = ()
    """The parameters that operands are laid out by: for a PrimFunc they cannot change any more."""
    alone: ClassVar[bool] = False
    """Whether no other template is asked for what this one takes."""
    since: ClassVar[str] = ""
    """The architecture whose instructions its text is made of; empty where it has no text of its own."""

    @abstractmethod
    def matched(self, func: PrimFunc, target: Target) -> Form | Declined:
        """Return what `func` computes, as far as the template asks, or why it is not for this template."""

    def given(self, func: PrimFunc) -> Parameters | None:
        """Return the point that the operands of a matched `func` are laid out for; None where they lie as they came."""
        del func
        return None

    def outdone(self, form: Form, machine: Machine) -> str:
        """Return why a template behind this one is faster, so that this one takes a point that is asked for alone."""
        del form, machine
        return ""

    def default(self, form: Form, machine: Machine) -> Parameters | None:
        """Return the untuned point, by arithmetic on the hardware row; None where another template is to compute it."""
        del form, machine
        return {}

    def space(self, form: Form, machine: Machine) -> Choices | Iterable[Parameters]:
        """Return what is worth a trial: values of each parameter, to be combined freely, or a list of points."""
        del form, machine
        return {}

    def refusal(self, form: Form, parameters: Parameters, machine: Machine) -> str:
        """Return why the parameters are no point for `form`, layout included; empty if they are one."""
        allowed = self.space(form, machine)
        assert isinstance(allowed, Mapping), self.name
        if set(parameters) != set(allowed):
            return f"the template's parameters are {', '.join(allowed)}, not {', '.join(parameters)}"
        wrong = next((name for name in allowed if parameters[name] not in allowed[name]), None)
        return f"{wrong} may be one of {allowed[wrong]} here, not {parameters[wrong]}" if wrong else ""

    @abstractmethod
    def emit(self, func: PrimFunc, form: Form, parameters: Parameters, machine: Machine) -> PrimFunc | Declined:
        """Return `func` scheduled, or why the device does not hold this point.

        The result computes what `func` computes, for every value of its symbolic sizes. A reduction may be summed in
        another order. Raise `tvm.s_tir.ScheduleError` where TVM refuses a step: the caller takes it as a decline.
        """

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """Return `func` scheduled with `parameters`, or with those that it is laid out for, or the untuned ones.

        Raise NoSuchPoint for parameters that are none here, and what `emit` raises.
        """
        form = self.matched(func, target)
        if isinstance(form, Declined):
            return form
        machine, given = hardware_of(target), self.given(func)
        if parameters is not None:
            if reason := self.refusal(form, parameters, machine) or self._other_layout(given, parameters):
                raise NoSuchPoint(reason)
            chosen = parameters
        elif given is not None:
            chosen = given
        else:
            found = self._untuned(form, machine)
            if isinstance(found, Declined):
                return found
            chosen = found
        made = self.emit(func, form, chosen, machine)
        return made if isinstance(made, Declined) else Schedule(made, dict(chosen))

    def points(self, func: PrimFunc, target: Target) -> Points | Declined:
        """Return what `apply` takes for `func`: each point gives a right schedule, or is one that `emit` declines.

        Where the operands are laid out, they are the points of that layout, the one that it is laid out for first.
        """
        form = self.matched(func, target)
        if isinstance(form, Declined):
            return form
        given, space = self.given(func), self.space(form, hardware_of(target))
        if isinstance(space, Mapping):
            return Points(space)
        return Points.of([*([] if given is None else [given]), *(p for p in space if not self._other_layout(given, p))])

    def searched(self, func: PrimFunc, target: Target) -> Points | Declined:
        """Return the points that a search tries: one of each kernel, where the template tells them apart."""
        return self.points(func, target)

    def proposed(self, func: PrimFunc, target: Target) -> Parameters | Declined:
        """Return the untuned point, of what is outdone too."""
        form = self.matched(func, target)
        return form if isinstance(form, Declined) else self.default(form, hardware_of(target)) or {}

    def _untuned(self, form: Form, machine: Machine) -> Parameters | Declined:
        found = None if (reason := self.outdone(form, machine)) else self.default(form, machine)
        return Declined(reason or "another template computes it") if found is None else found

    def _other_layout(self, given: Parameters | None, parameters: Parameters) -> str:
        """Why parameters are of another layout than the PrimFunc has."""
        other = [name for name in self.layout if given is not None and parameters.get(name) != given.get(name)]
        return f"the PrimFunc has another {other[0]}" if other else ""


Rule = Template[Any, Any]
"""Any template, as lists of them have it."""
