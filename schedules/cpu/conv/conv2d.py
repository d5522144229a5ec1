"""Convolutions on a CPU as a GEMM over panels of gathered input (implicit im2col), groups included."""

from __future__ import annotations

from relaxc.schedules.cpu.gemm.matmul import ByRegisters
from relaxc.schedules.ir.contraction import Contraction

__all__ = ["Conv2d"]


class Conv2d(ByRegisters):
    """`C[n, f, y, x] = epilogue(sum over c, i, j of D[n, c, y*s + i*d, x*s + j*d] * W[f, c, i, j])`.

    Any layout, rank, stride, dilation, padding and grouping: the operand that walks along the result's
    contiguous axis (D in NCHW, W in NHWC) is gathered, with its padding, into panels `[k, columns]` that
    stay in the cache. Declines what reduces over one axis (a matrix product) and depthwise convolutions.
    """

    name = "cpu.conv2d"
    version = 2

    def refused(self, found: Contraction) -> str:
        """See `ByRegisters`."""
        if len(found.reduced) < 2:
            return "it reduces over one axis: a matrix product"
        return "one output channel a group: depthwise" if found.b and found.size(found.m) == 1 else ""
