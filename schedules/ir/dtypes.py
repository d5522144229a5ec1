"""What the name of a dtype says: its size, and what kind of values it has."""

from __future__ import annotations

import re

__all__ = ["dtype_bits", "dtype_bytes", "is_condition", "is_float"]


def dtype_bits(dtype: str) -> int:
    """Return the bits of one element of a dtype such as `float32`, `bool`, `bfloat16` or `float8_e4m3fn`."""
    found = re.match(r"[a-z]+(\d+)", dtype)
    return 8 if dtype == "bool" else int(found[1]) if found else 64


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of one element of `dtype` in memory."""
    return max(1, dtype_bits(dtype) // 8)


def is_condition(dtype: str) -> bool:
    """Return whether `dtype` has truth values: it has no lowest and no highest."""
    return dtype == "bool"


def is_float(dtype: str) -> bool:
    """Return whether `dtype` is a floating-point type."""
    return dtype.startswith(("float", "bfloat"))
