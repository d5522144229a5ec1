"""What the name of a dtype says: its size, and what kind of values it has."""

from __future__ import annotations

__all__ = ["dtype_bits", "dtype_bytes", "is_condition", "is_float"]


def dtype_bits(dtype: str) -> int:
    """Return the bits of one element of a dtype such as `float32`, `bool` or `bfloat16`."""
    digits = "".join(ch for ch in dtype if ch.isdigit())
    return 8 if dtype == "bool" else int(digits) if digits else 64


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of one element of `dtype` in memory."""
    return max(1, dtype_bits(dtype) // 8)


def is_condition(dtype: str) -> bool:
    """Return whether `dtype` has truth values: it has no lowest and no highest."""
    return dtype == "bool"


def is_float(dtype: str) -> bool:
    """Return whether `dtype` is a floating-point type."""
    return dtype.startswith(("float", "bfloat"))
