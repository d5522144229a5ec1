"""Convolutions on a CPU as a GEMM over panels of gathered input (implicit im2col), groups included."""

from __future__ import annotations

from relaxc.schedules.cpu.gemm import register_blocked as gemm
from relaxc.schedules.cpu.gemm.matmul import inlined, schedule_contraction
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir.contraction import Contraction, find
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Choices, Declined, Parameters, Schedule

__all__ = ["Conv2d"]


class Conv2d:
    """`C[n, f, y, x] = epilogue(sum over c, i, j of D[n, c, y*s + i*d, x*s + j*d] * W[f, c, i, j])`.

    Any layout, rank, stride, dilation, padding and grouping: the operand that walks along the result's
    contiguous axis (D in NCHW, W in NHWC) is gathered, with its padding, into panels `[k, columns]` that
    stay in the cache. Declines what reduces over one axis (a matrix product) and depthwise convolutions.
    """

    name = "cpu.conv2d"
    version = 2

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
        if len(found.reduced) < 2:
            return Declined("it reduces over one axis: a matrix product")
        if found.b and found.size(found.m) == 1:
            return Declined("one output channel a group: depthwise")
        return found
