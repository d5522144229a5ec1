"""TVM's dlight schedules for GPUs, as rules."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule as TvmSchedule

from schedules.ir import analysis
from schedules.template import Choices, Declined, Parameters, Schedule, check

__all__ = ["Dlight"]


class Dlight:
    """One of dlight's GPU rules. They choose their own parameters from the shapes and the target."""

    def __init__(self, name: str, rule: Any, reason: str, *, needs_reduction: bool = False) -> None:
        self.name = name
        self.version = 1
        self.rule = rule
        self.reason = reason
        self.needs_reduction = needs_reduction

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.template.Rule`."""
        check(parameters or {}, {})
        if self.needs_reduction and not analysis.has_reduction(func):
            return Declined("it reduces nothing")
        found = self.rule.apply(func, target, False)
        if found is None:
            return Declined(self.reason)
        sch: TvmSchedule = found[0] if isinstance(found, list) else found
        return Schedule(sch.mod["main"])

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """There is one point: nothing is chosen."""
        return {}
