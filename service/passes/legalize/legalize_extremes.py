"""Maxima and minima of floats that begin at infinity, where TVM's begin at the last finite number.

    max of a row of -∞          →  -∞     it was -3.4e38
    MaxPool of -∞, with padding →  -∞     so are its surroundings

A softmax's maximum stays: it is subtracted, and -∞ less -∞ is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir import Op

from relaxc.schedules.ir.dtypes import is_float

__all__ = ["EXTREMES", "from_infinity"]

_EXTREME = "relaxc.extreme"
"""The attribute of a PrimFunc whose last finite numbers are where a maximum or minimum begins; the importer of `.pt2`
gives it to adaptive pools.
"""

_OPERATORS = ("max", "min", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")


class _Marking:
    """A builder whose kernels have the attribute."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def call_te(self, *args: Any, **kwargs: Any) -> relax.Expr:
        """Return what the builder does."""
        return self._builder.call_te(*args, **kwargs, primfunc_attrs={_EXTREME: True})


def _rule(operator: str) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    legalize = Op.get(operator).get_attr("FLegalize")
    return lambda builder, call: legalize(_Marking(builder), call)


EXTREMES = {name: _rule(name) for name in (f"relax.{operator}" for operator in _OPERATORS)}
"""TVM's rules, whose kernels `from_infinity` knows."""


def from_infinity(module: IRModule) -> IRModule:
    """Return the module, legalized and not fused, whose maxima and minima of floats begin at infinity."""
    for name, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc) and func.attrs is not None and _EXTREME in func.attrs:
            begun = tvm_ffi.structural_map(func, (tirx.FloatImm, _infinite))
            module.update_func(name, begun.without_attr(_EXTREME))
    return module


def _infinite(number: Any) -> Any:
    dtype = str(number.ty.dtype)
    if not is_float(dtype):
        return number
    for last, infinity in ((tirx.min_value(dtype), -math.inf), (tirx.max_value(dtype), math.inf)):
        if number.value == last.value:
            return tirx.const(infinity, dtype)
    return number
