"""Matrix products on a CPU: GEMM, batched GEMM and linear layers, with their elementwise epilogue."""

from __future__ import annotations

from tvm import s_tir

from relaxc.schedules.cpu.common.nest import rows_are_contiguous, schedule_nests
from relaxc.schedules.cpu.gemm import register_blocked as gemm
from relaxc.schedules.hardware import Cpu, cpu_of
from relaxc.schedules.ir import moves
from relaxc.schedules.ir.contraction import Contraction, find
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.ir.work import work_of
from relaxc.schedules.template import Choices, Declined, Parameters, Schedule

__all__ = ["Matmul", "inlined", "schedule_contraction"]

FEW_ROWS = 4


class Matmul:
    """`C[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])`; B in either layout, sizes symbolic or not.

    16-bit floats are summed in fp32. Declines what is no sum of products, a convolution, and few rows
    against a B whose k is contiguous: there each dot product is a contiguous row reduction.
    """

    name = "cpu.matmul"
    version = 1

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `relaxc.schedules.template.Rule`."""
        cpu, func = cpu_of(target), inlined(func)
        found = self._match(func)
        return found if isinstance(found, Declined) else schedule_contraction(func, found, cpu, parameters)

    def choices(self, func: PrimFunc, target: Target) -> Choices | Declined:
        """See `relaxc.schedules.template.Rule`."""
        found = self._match(inlined(func))
        return found if isinstance(found, Declined) else gemm.choices(found, cpu_of(target))

    def _match(self, func: PrimFunc) -> Contraction | Declined:
        found = find(func)
        if isinstance(found, Declined):
            return found
        if len(found.reduced) != 1:
            return Declined(f"it reduces over {len(found.reduced)} axes: a convolution")
        rows = found.size(found.m)
        if isinstance(rows, int) and rows <= FEW_ROWS and rows_are_contiguous(found.block):
            return Declined(f"{rows} rows against a contiguous k are row reductions")
        return found


def inlined(func: PrimFunc) -> PrimFunc:
    """Return `func` with its elementwise stages inlined into their readers."""
    sch = s_tir.Schedule(func)
    moves.inline_producers(sch)
    return sch.mod["main"]


def schedule_contraction(func: PrimFunc, c: Contraction, cpu: Cpu, parameters: Parameters | None) -> Schedule:
    """Apply the GEMM template to `c`, and schedule each further nest of `func` on its own."""
    blocking = gemm.default(c, cpu) if parameters is None else gemm.from_parameters(parameters, gemm.choices(c, cpu))
    sch = gemm.schedule(func, c, blocking, work_of(func).known_flops, cpu.cores)
    return Schedule(schedule_nests(sch.mod["main"], cpu), blocking.to_dict())
