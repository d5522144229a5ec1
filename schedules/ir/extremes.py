"""Maxima and minima of floats: where they begin, and where NaN is to come through them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.ir.types import Buffer, Expr

__all__ = ["OF_NUMBERS", "SHIFTS", "any_nan", "is_shift", "largest", "least"]

SHIFTS = ("softmax_maxelem", "attention_top")
"""In the names of buffers while a kernel is scheduled; until then blocks are annotated (`roles.SHIFT`)."""

OF_NUMBERS: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.Max: lambda a, b: tirx.Select(a > b, a, b),
    tirx.Min: lambda a, b: tirx.Select(a < b, a, b),
}
"""The larger and the smaller of two by one instruction of x86, which gives the second where one is NaN."""

_IS_NAN = 3
"""`llvm.is.fpclass`'s bits of quiet and signaling NaN."""


def least(dtype: str) -> Expr:
    """Return what no number is less than: -∞, which TVM's `min_value` is not, or the lowest integer."""
    return tirx.const(-math.inf, dtype) if is_float(dtype) else tirx.min_value(dtype)


largest: Any = te.comm_reducer(lambda a, b: tirx.max(a, b), least, name="max")
"""`te.max` that begins at -∞."""


def is_shift(buffer: Buffer) -> bool:
    """Return whether it has what a softmax subtracts before its exponentials, whose sum is NaN where one is."""
    return any(name in buffer.name for name in SHIFTS)


def any_nan(buffer: Buffer, lanes: int, vectors: int) -> Expr:
    """Return whether one of the first `vectors` vectors of `lanes` floats has a NaN: a compare for two of them."""
    dtype = str(buffer.dtype)

    def mask(number: int) -> Expr:
        vector = buffer.vload([tir.index_const(number * lanes)], dtype=f"{dtype}x{lanes}")
        return tirx.call_llvm_pure_intrin(f"boolx{lanes}", "llvm.is.fpclass", vector, tirx.IntImm("int32", _IS_NAN))

    found = mask(0)
    for number in range(1, vectors):
        found = tirx.Or(found, mask(number))
    return tirx.call_llvm_pure_intrin("bool", "llvm.vector.reduce.or", found)
