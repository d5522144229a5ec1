"""Maxima and minima of floats that begin at infinity, where TVM's begin at the last finite number.

    max of a row of -∞          →  -∞     it was -3.4e38
    MaxPool of -∞, with padding →  -∞     so are its surroundings

A softmax's maximum stays: it is subtracted, and -∞ less -∞ is NaN.
"""

from __future__ import annotations

import math
import re
from typing import Any

import tvm_ffi
from tvm import IRModule, tirx

from relaxc.schedules.ir.dtypes import is_float

__all__ = ["from_infinity"]

_KERNELS = re.compile(r"(max|min|max_pool[123]d|adaptive_pool([13]d)?)\d*")
"""What LegalizeOps, and the importer of `.pt2`, call the PrimFuncs of these operators, which have no other numbers."""


def from_infinity(module: IRModule) -> IRModule:
    """Return the module, legalized and not fused, whose maxima and minima of floats begin at infinity."""
    for name, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc) and _KERNELS.fullmatch(name.name_hint):
            module.update_func(name, tvm_ffi.structural_map(func, (tirx.FloatImm, _infinite)))
    return module


def _infinite(number: Any) -> Any:
    dtype = str(number.ty.dtype)
    if not is_float(dtype):
        return number
    for last, infinity in ((tirx.min_value(dtype), -math.inf), (tirx.max_value(dtype), math.inf)):
        if number.value == last.value:
            return tirx.const(infinity, dtype)
    return number
