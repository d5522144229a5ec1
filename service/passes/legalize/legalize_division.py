"""A float divided by the constant 0, which TVM's arithmetic refuses to write down: times an infinity, the same."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx, topi

from schedules.ir.dtypes import is_float
from service.passes.common.constants import array_of, is_tensor_constant

__all__ = ["DIVISION"]


def _divide(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    left, right = call.args
    zero = _zero(right)
    if zero is None:
        return call.op.get_attr("FLegalize")(builder, call)
    infinity = tirx.const(math.copysign(math.inf, zero), str(right.ty.dtype))
    return builder.call_te(topi.multiply, left, infinity, primfunc_name_hint="divide")


def _zero(expr: Any) -> float | None:
    """The zero, with its sign, that a scalar constant of floats is."""
    if not is_tensor_constant(expr) or expr.ty.ndim != 0 or not is_float(str(expr.ty.dtype)):
        return None
    value = float(array_of(expr))
    return value if value == 0 else None


DIVISION = {"relax.divide": _divide}
