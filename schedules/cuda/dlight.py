"""TVM's dlight schedules for GPUs, as rules."""

from __future__ import annotations

from typing import Any

from tvm.error import InternalError
from tvm.s_tir import Schedule as TvmSchedule

from relaxc.schedules.cuda.common.launches import launches, parts
from relaxc.schedules.cuda.common.own_memory import reads_of_others
from relaxc.schedules.cuda.common.races import race
from relaxc.schedules.cuda.common.shared_memory import allocated, shared_bytes
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import analysis
from relaxc.schedules.ir.dtypes import dtype_bits
from relaxc.schedules.ir.single import without_single_reductions
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Declined, Parameters, Template

__all__ = ["Dlight"]


_BREAKS = (AssertionError, AttributeError, TypeError, ValueError, InternalError)
"""What they raise where extents are not what they expect, or TVM's own state breaks: a rule behind may take it."""


class Dlight(Template[tuple[PrimFunc, Target], Gpu]):
    """One of dlight's GPU rules. They choose their own parameters from the shapes and the target."""

    def __init__(self, name: str, rule: Any, reason: str, *, needs_reduction: bool = False) -> None:
        self.name = name
        self.version = 3
        self.rule = rule
        self.reason = reason
        self.needs_reduction = needs_reduction

    def matched(self, func: PrimFunc, target: Target) -> tuple[PrimFunc, Target] | Declined:
        """Return what dlight's rule is asked: whether it takes that is known when it has."""
        func = without_single_reductions(func)
        if self.needs_reduction and not analysis.has_reduction(func):
            return Declined("it reduces nothing")
        return func, target

    def emit(
        self, func: PrimFunc, form: tuple[PrimFunc, Target], parameters: Parameters, gpu: Gpu
    ) -> PrimFunc | Declined:
        """See `Template`."""
        try:
            found = self.rule.apply(*form, False)
        except _BREAKS as error:
            return Declined(f"dlight's rule fails: {error}")
        if found is None:
            return Declined(self.reason)
        sch: TvmSchedule = found[0] if isinstance(found, list) else found
        made = sch.mod["main"]
        if not all(map(launches, parts(made))):
            return Declined("it would leave loops to the CPU, which cannot read the device's memory")
        reason = race(made) or _strays(made) or _fragments_of_bytes(made) or _too_much(made, gpu)
        return Declined(reason) if reason else made


def _strays(func: PrimFunc) -> str:
    name = reads_of_others(func)
    return f"its threads would read what others have in registers: {name}" if name else ""


def _fragments_of_bytes(func: PrimFunc) -> str:
    """TVM 0.27's InferFragment stops at them: a check of its own fails while the library is built."""
    fragments = [buffer for buffer in allocated(func) if str(buffer.scope()).startswith("wmma")]
    low = [str(buffer.dtype) for buffer in fragments if dtype_bits(str(buffer.dtype)) == 8]
    return f"TVM cannot lower tensor-core fragments of {low[0]}" if low else ""


def _too_much(func: PrimFunc, gpu: Gpu) -> str:
    """Why a GPU has not the shared memory for it: gpu.GEMV keeps as many vectors there as it reads, however long."""
    most = gpu.shared_bytes_per_block
    try:
        taken = shared_bytes(func)
    except _BREAKS as error:
        return f"TVM cannot lower it: {error}"
    return f"it takes {taken} bytes of shared memory, and a CTA has {most}" if taken > most else ""
