"""Matrix products on a CPU: GEMM, batched GEMM and linear layers, with their elementwise epilogue."""

from __future__ import annotations

from abc import abstractmethod

from tvm import s_tir

from relaxc.schedules.cpu.common.nest import rows_are_contiguous, schedule_nests
from relaxc.schedules.cpu.gemm import register_blocked as gemm
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import moves
from relaxc.schedules.ir.contraction import Contraction, find
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.ir.work import work_of
from relaxc.schedules.template import Choices, Declined, Parameters, Template

__all__ = ["ByRegisters", "Matmul", "inlined"]

FEW_ROWS = 4


_Form = tuple[PrimFunc, Contraction]


class ByRegisters(Template[_Form, Cpu]):
    """A contraction by the register block of `register_blocked`, and each further nest of its PrimFunc on its own."""

    def matched(self, func: PrimFunc, target: Target) -> _Form | Declined:
        """Return the contraction, and the PrimFunc without stages that can be inlined."""
        func = inlined(func)
        found = find(func)
        if isinstance(found, Declined):
            return found
        reason = self.refused(found)
        return Declined(reason) if reason else (func, found)

    @abstractmethod
    def refused(self, found: Contraction) -> str:
        """Return why a contraction is for another template, or ''."""

    def default(self, form: _Form, cpu: Cpu) -> Parameters:
        """See `Template`."""
        return gemm.default(form[1], cpu).to_dict()

    def space(self, form: _Form, cpu: Cpu) -> Choices:
        """See `Template`."""
        return gemm.choices(form[1], cpu)

    def emit(self, func: PrimFunc, form: _Form, parameters: Parameters, cpu: Cpu) -> PrimFunc:
        """See `Template`."""
        inner, found = form
        sch = gemm.schedule(inner, found, gemm.Blocking(**parameters), work_of(inner).known_flops, cpu.cores)
        return schedule_nests(sch.mod["main"], cpu)


class Matmul(ByRegisters):
    """`C[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])`; B in either layout, sizes symbolic or not.

    16-bit floats are summed in fp32. Declines what is no sum of products, a convolution, and few rows
    against a B whose k is contiguous: there each dot product is a contiguous row reduction.
    """

    name = "cpu.matmul"
    version = 1

    def refused(self, found: Contraction) -> str:
        """See `ByRegisters`."""
        if len(found.reduced) != 1:
            return f"it reduces over {len(found.reduced)} axes: a convolution"
        rows = found.size(found.m)
        few = isinstance(rows, int) and rows <= FEW_ROWS and rows_are_contiguous(found.block)
        return f"{rows} rows against a contiguous k are row reductions" if few else ""


def inlined(func: PrimFunc) -> PrimFunc:
    """Return `func` with its elementwise stages inlined into their readers."""
    sch = s_tir.Schedule(func)
    moves.inline_producers(sch)
    return sch.mod["main"]
