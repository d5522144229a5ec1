"""Quantizations in TIR, as `legalize_quantized` writes them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from relaxc.schedules.ir.types import Expr

__all__ = ["BYTES", "Quantization", "is_within", "quantization_of"]

BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class Quantization:
    """`clamp(round(value / scale) + zero, low, high)`, halves to even; without a scale it is 1."""

    value: Expr
    scale: Expr | None
    zero: Expr
    low: int
    high: int


def quantization_of(expr: Expr, dtype: str) -> Quantization | None:
    """Return what `min(max(nearbyint(value / scale) + zero, low), high)` computes; None for another form."""
    if not is_within(expr, dtype):
        return None
    total, low, high = expr.a.a, expr.a.b, expr.b
    if not isinstance(total, tirx.Add) or not isinstance(total.b, tirx.Cast):
        return None
    rounded, zero = total.a, total.b.value
    if getattr(getattr(rounded, "op", None), "name", "") != "tirx.nearbyint" or str(zero.ty.dtype) not in BYTES:
        return None
    quotient, limits = rounded.args[0], (int(low.value), int(high.value))
    if str(quotient.ty.dtype) != "float32":
        return None
    if not isinstance(quotient, tirx.Div):
        return Quantization(quotient, None, zero, *limits)
    return Quantization(quotient.a, quotient.b, zero, *limits)


def is_within(expr: Expr, dtype: str) -> bool:
    """Return whether `min(max(x, low), high)` keeps a value within `dtype`."""
    if not isinstance(expr, tirx.Min) or not isinstance(expr.a, tirx.Max):
        return False
    low, high = expr.a.b, expr.b
    if not isinstance(low, tirx.FloatImm) or not isinstance(high, tirx.FloatImm):
        return False
    return bool(tirx.min_value(dtype).value <= low.value and high.value <= tirx.max_value(dtype).value)
