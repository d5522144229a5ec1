"""Elementwise and data movement functions on a CPU: one pass, parallel outside, vectors along memory."""

from __future__ import annotations

from relaxc.schedules.cpu.common.nest import schedule_nests
from relaxc.schedules.cpu.elementwise.stream import stream_program
from relaxc.schedules.cpu.gemm.matmul import inlined
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir import analysis
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Choices, Declined, Parameters, Schedule, check

__all__ = ["Injective"]


class Injective:
    """`out[i] = f(a[g(i)], …)`: chains are inlined into one loop nest an output.

    Where accesses are contiguous or transposed, loops over memory (see `stream_program`); where some are gathers or
    sizes of the last axis symbolic, the axes over which every access is contiguous become one flat loop of vectors.
    Declines functions with a reduction or a statement that is no plain loop nest.
    """

    name = "cpu.injective"
    version = 3

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `relaxc.schedules.template.Rule`."""
        reason = _refusal(func)
        if reason is not None:
            return Declined(reason)
        check(parameters or {}, {})
        cpu, func = cpu_of(target), inlined(func)
        return Schedule(stream_program(func, cpu) or schedule_nests(func, cpu))

    def choices(self, func: PrimFunc, target: Target) -> Choices | Declined:
        """There is one point: nothing is chosen."""
        reason = _refusal(func)
        return {} if reason is None else Declined(reason)


def _refusal(func: PrimFunc) -> str | None:
    for nest in analysis.nests(func):
        if nest is None:
            return "a statement is no plain loop nest"
        if not analysis.is_injective(nest.block):
            return f"block {nest.block.name_hint} is not elementwise"
    return None
