"""Integers in C that wrap, as those of ONNX, torch and numpy: C has what overflows a signed one for impossible."""

from __future__ import annotations

from tvm import tirx

__all__ = ["ARITHMETIC", "wrapping"]

ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul)
_TYPES = {"int32": ("int", "unsigned int"), "int64": ("long long", "unsigned long long")}
_TYPES["uint16"] = ("unsigned short", "unsigned int")  # C multiplies them as signed integers of 32 bits


def wrapping(dtype: str, a: str, operator: str, b: str) -> str:
    """Return the text of a sum, difference or product of `dtype`; of other dtypes than integers the plain one."""
    if dtype not in _TYPES:
        return f"({a} {operator} {b})"
    own, unsigned = _TYPES[dtype]
    return f"(({own})(({unsigned})({a}) {operator} ({unsigned})({b})))"
