"""Elementwise and data movement functions on a CPU: one pass, parallel outside, vectors along memory."""

from __future__ import annotations

from relaxc.schedules.cpu.common.nest import schedule_nests
from relaxc.schedules.cpu.elementwise.stream import stream_program
from relaxc.schedules.cpu.gemm.matmul import inlined
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import analysis
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Declined, Parameters, Template

__all__ = ["Injective"]


class Injective(Template[PrimFunc, Cpu]):
    """`out[i] = f(a[g(i)], …)`: chains are inlined into one loop nest an output.

    Where accesses are contiguous or transposed, loops over memory (see `stream_program`); where some are gathers or
    sizes of the last axis symbolic, the axes over which every access is contiguous become one flat loop of vectors.
    Declines functions with a reduction or a statement that is no plain loop nest.
    """

    name = "cpu.injective"
    version = 3

    def matched(self, func: PrimFunc, target: Target) -> PrimFunc | Declined:
        """Return `func` with its chains inlined."""
        for nest in analysis.nests(func):
            if nest is None:
                return Declined("a statement is no plain loop nest")
            if not analysis.is_injective(nest.block):
                return Declined(f"block {nest.block.name_hint} is not elementwise")
        return inlined(func)

    def emit(self, func: PrimFunc, form: PrimFunc, parameters: Parameters, cpu: Cpu) -> PrimFunc:
        """See `Template`."""
        return stream_program(form, cpu) or schedule_nests(form, cpu)
