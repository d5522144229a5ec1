"""The base of templates that follow a plan: they read it off the PrimFunc, and guess nothing back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from relaxc.schedules.hardware import Cpu, cpu_of
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.operators import Operator
from relaxc.schedules.plan import Plan, plan_of
from relaxc.schedules.template import Declined, Distinct, Free, Parameters, Points, Rule, Schedule

__all__ = ["Planned", "searched", "space_of"]

Array = np.ndarray[Any, Any]

Op = TypeVar("Op", bound=Operator)


class Planned(Generic[Op]):
    """A rule for PrimFuncs with a plan of its own, of operators that are `computes`: all that is particular to it.

    `refusal` alone says what a point is; `default` is the untuned one, and `space` are those that are worth a trial,
    over all layouts, each with its `estimate`. `compute` and `pack` make the kernel and its weights as a plan lays them
    out, and `emit` schedules it. `layout` names the parameters that the operands are laid out by: for a PrimFunc they
    cannot change any more. `dtypes` are those of the operands and of the sums that it computes; `kernel` is what its
    kernels are called.
    """

    name: str
    version: int
    layout: tuple[str, ...]
    computes: type[Op]
    dtypes: tuple[tuple[str, ...], ...]
    kernel: str

    repacks: ClassVar[bool] = False
    """Whether the weights of its operator may be packed in other ways, by this template or another."""
    enlarges: ClassVar[bool] = False
    """Whether its packed weights take more room than the model's."""
    decides: ClassVar[bool] = False
    """Whether its default is taken wherever there is one: it has compared itself with the others."""

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `relaxc.schedules.template.Rule`."""
        plan = self._plan(func)
        if isinstance(plan, Declined):
            return plan
        cpu = cpu_of(target)
        chosen = dict(plan.parameters if parameters is None else parameters)
        if parameters is not None and (reason := self._refusal(plan, chosen, cpu)):
            raise ValueError(reason)
        made = self.emit(func, plan.operator, chosen, cpu)  # type: ignore[arg-type]  # `_plan` has seen what it is of
        return made if isinstance(made, Declined) else Schedule(made, chosen)

    def points(self, func: PrimFunc, target: Target) -> Points | Declined:
        """Return the points of the PrimFunc's layout, that of its plan first."""
        plan = self._plan(func)
        if isinstance(plan, Declined):
            return plan
        found = self.space(plan.operator, cpu_of(target))  # type: ignore[arg-type]
        same = (point for point in found if all(point.get(name) == plan.parameters.get(name) for name in self.layout))
        return Points.of([plan.parameters, *same])

    def wrong_dtypes(self, operator: Op) -> str:
        """Return that it does not compute an operator of these dtypes; empty if it may."""
        is_declared = (*operator.operands, operator.accumulate) in self.dtypes
        return "" if is_declared else f"it computes no {operator.kind} of {operator.dtype}"

    def refusal(self, operator: Op, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """Return why the parameters are no point of the operator's space, layout included; empty if they are one."""
        raise NotImplementedError

    def default(self, operator: Op, cpu: Cpu) -> Mapping[str, int] | None:
        """Return the untuned point; None where another template computes the operator, or does so faster."""
        raise NotImplementedError

    def space(self, operator: Op, cpu: Cpu) -> Iterable[Mapping[str, int]]:
        """Return the points that are worth a trial; none where it does not compute the operator."""
        raise NotImplementedError

    def estimate(self, operator: Op, parameters: Mapping[str, int], cpu: Cpu) -> float:
        """Return the cycles of a point."""
        raise NotImplementedError

    def kernel_name(self, operator: Op) -> str:
        """Return what its kernel for an operator is called."""
        del operator
        return self.kernel

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """Return the operator as a tensor expression of image or rows, packed weights, and a gate if there is one."""
        raise NotImplementedError(f"{self.name} is for what a pass has put together")

    def pack(self, plan: Plan, weight: Array) -> Array:
        """Return the weights, `KN` or `OIHW`, as the plan has them laid out: a view where it can be."""
        raise NotImplementedError(f"{self.name} has no weights")

    def packed_shape(self, plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of weights of `shape` that `pack` has packed, of a template that `repacks`."""
        raise NotImplementedError(f"{self.name} packs its weights in one way")

    def emit(self, func: PrimFunc, operator: Op, parameters: Mapping[str, int], cpu: Cpu) -> PrimFunc | Declined:
        """Return `func` scheduled."""
        raise NotImplementedError

    def _plan(self, func: PrimFunc) -> Plan | Declined:
        plan = plan_of(func)
        if plan is None or plan.template != self.name:
            return Declined("it carries no plan of this template")
        return plan

    def _refusal(self, plan: Plan, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """Why these are no point, or of another layout than the PrimFunc has."""
        reason = self.refusal(plan.operator, parameters, cpu)  # type: ignore[arg-type]
        other = [name for name in self.layout if parameters.get(name) != plan.parameters.get(name)]
        return reason or (f"the PrimFunc has another {other[0]}" if other else "")


def space_of(rule: Rule, func: PrimFunc, target: Target) -> Points | Declined:
    """Return what a search may try for `func`."""
    if isinstance(rule, Planned):
        return rule.points(func, target)
    assert isinstance(rule, Free), rule.name
    choices = rule.choices(func, target)
    return choices if isinstance(choices, Declined) else Points(choices)


def searched(rule: Rule, func: PrimFunc, target: Target) -> Points | Declined:
    """Return the points of `space_of` that a search tries: one of each kernel, where the template tells them apart."""
    return rule.distinct(func, target) if isinstance(rule, Distinct) else space_of(rule, func, target)
