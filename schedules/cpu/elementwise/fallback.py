"""The rule that always applies on a CPU: each loop nest on its own, and what is no loop nest left as it is."""

from __future__ import annotations

from relaxc.schedules.cpu.common.nest import schedule_nests
from relaxc.schedules.cpu.gemm.matmul import inlined
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Choices, Declined, Parameters, Schedule, check

__all__ = ["Fallback"]


class Fallback:
    """Takes every PrimFunc: sorts, scans, scatters, tuple reductions, symbolic sizes, opaque blocks.

    A nest that TVM refuses a step on stays as it was: steps are taken on a copy.
    """

    name = "cpu.fallback"
    version = 2

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `relaxc.schedules.template.Rule`; never declines."""
        check(parameters or {}, {})
        return Schedule(schedule_nests(inlined(func), cpu_of(target), careful=True))

    def choices(self, func: PrimFunc, target: Target) -> Choices | Declined:
        """There is one point: nothing is chosen."""
        return {}
