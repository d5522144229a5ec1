"""Quantization by one scale and one zero point as tensor expressions, to the bit as `legalize_quantized` has it."""

from __future__ import annotations

from typing import Any

from tvm import tirx

__all__ = ["dequantized", "quantized"]


def quantized(value: Any, scale: Any | None, zero: Any, dtype: str) -> Any:
    """Return `clip(round(value / scale) + zero)` in a dtype of bytes, halves to even; the lowest for NaN.

    Without a scale it is 1.
    """
    low, high = (tirx.const(float(bound.value), "float32") for bound in (tirx.min_value(dtype), tirx.max_value(dtype)))
    moved = tirx.nearbyint(value if scale is None else value / scale) + zero.astype("float32")
    return tirx.min(tirx.max(moved, low), high).astype(dtype)


def dequantized(value: Any, scale: Any, zero: Any) -> Any:
    """Return `(value - zero) * scale` in fp32."""
    return (value.astype("int32") - zero.astype("int32")).astype("float32") * scale
