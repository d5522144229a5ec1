"""The base of templates that follow a plan: they read it off the PrimFunc, and guess nothing back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schedules.hardware import Cpu, cpu_of
from schedules.operators import Operator
from schedules.plan import Plan, plan_of
from schedules.template import Choices, Declined, Parameters, Schedule, check, including

__all__ = ["Planned"]


class Planned:
    """A rule for PrimFuncs with a plan of its own. What a template adds is `refusal`, `searched` and `emit`.

    `layout` names the parameters that the operands were laid out by: they cannot change any more.
    """

    name: str
    version: int
    layout: tuple[str, ...]

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.template.Rule`."""
        plan = self._plan(func)
        if isinstance(plan, Declined):
            return plan
        cpu = cpu_of(target)
        chosen = dict(plan.parameters if parameters is None else parameters)
        if parameters is not None:
            self._check(plan, chosen, cpu)
        made = self.emit(func, plan.operator, chosen, cpu)
        return made if isinstance(made, Declined) else Schedule(made, chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `schedules.template.Rule`; the parameters of the layout have one value."""
        plan = self._plan(func)
        if isinstance(plan, Declined):
            return plan
        fixed = {name: (plan.parameters[name],) for name in self.layout}
        return including({**self.searched(plan.operator, plan.parameters, cpu_of(target)), **fixed}, plan.parameters)

    def refusal(self, operator: Operator, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """Return why the parameters are no point of the operator's space, layout included; empty if they are one."""
        raise NotImplementedError

    def searched(self, operator: Operator, parameters: Mapping[str, int], cpu: Cpu) -> Choices:
        """Return the values of the other parameters, for the layout in `parameters`."""
        raise NotImplementedError

    def emit(self, func: Any, operator: Operator, parameters: Mapping[str, int], cpu: Cpu) -> Any | Declined:
        """Return `func` scheduled."""
        raise NotImplementedError

    def _plan(self, func: Any) -> Plan | Declined:
        plan = plan_of(func)
        if plan is None or plan.template != self.name:
            return Declined("it carries no plan of this template")
        return plan

    def _check(self, plan: Plan, parameters: dict[str, int], cpu: Cpu) -> None:
        """Raise ValueError for parameters that are no point, or of another layout than the PrimFunc has."""
        fixed = {name: (plan.parameters[name],) for name in self.layout}
        allowed = including({**self.searched(plan.operator, plan.parameters, cpu), **fixed}, plan.parameters)
        same_layout = all(parameters.get(name) in values for name, values in fixed.items())
        if not same_layout or self.refusal(plan.operator, parameters, cpu):
            check(parameters, allowed)
