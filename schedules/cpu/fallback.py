"""The rule that always applies on a CPU: each loop nest on its own, and what is no loop nest left as it is."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from schedules import analysis
from schedules.cpu.nest import schedule_nest
from schedules.hardware import cpu_of
from schedules.rule import Choices, Declined, Parameters, Schedule, check

__all__ = ["Fallback"]


class Fallback:
    """Takes every PrimFunc: sorts, scans, scatters, tuple reductions, symbolic sizes, opaque blocks.

    A nest whose steps TVM refuses keeps its last accepted form: steps are taken on a copy.
    """

    name = "cpu.fallback"
    version = 1

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.rule.Rule`; never declines."""
        check(parameters or {}, {})
        cpu = cpu_of(target)
        sch = s_tir.Schedule(func)
        for nest in analysis.nests(func):
            if nest is None:
                continue
            attempt = sch.copy()
            try:
                schedule_nest(attempt, nest.block.name_hint, cpu)
            except s_tir.ScheduleError:
                continue
            sch = attempt
        return Schedule(sch.mod["main"])

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """There is one point: nothing is chosen."""
        return {}
