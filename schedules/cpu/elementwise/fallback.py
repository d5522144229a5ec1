"""The rule that always applies on a CPU: each loop nest on its own, and what is no loop nest left as it is."""

from __future__ import annotations

from relaxc.schedules.cpu.common.nest import schedule_nests
from relaxc.schedules.cpu.gemm.matmul import inlined
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Parameters, Template

__all__ = ["Fallback"]


class Fallback(Template[PrimFunc, Cpu]):
    """Takes every PrimFunc: sorts, scans, scatters, tuple reductions, symbolic sizes, opaque blocks.

    A nest that TVM refuses a step on stays as it was: steps are taken on a copy.
    """

    name = "cpu.fallback"
    version = 2

    def matched(self, func: PrimFunc, target: Target) -> PrimFunc:
        """Return `func` with what can be inlined; never declines."""
        return inlined(func)

    def emit(self, func: PrimFunc, form: PrimFunc, parameters: Parameters, cpu: Cpu) -> PrimFunc:
        """See `Template`."""
        return schedule_nests(form, cpu, careful=True)
