"""Conversions from and to element types that travel as codes."""

from __future__ import annotations

from typing import Any

from tvm import te

from relaxc.service.codes import CARRIER, FORMATS, code_of, number_of
from relaxc.service.frontend.onnx.codes import as_codes, of_codes
from relaxc.service.frontend.onnx.node import Node
from relaxc.service.frontend.onnx.ops.common import cast
from relaxc.service.frontend.onnx.values import Known

__all__ = ["narrowed", "widened"]


def widened(node: Node, value: Any) -> Any:
    """Return the numbers of a value that has codes, a constant's as one: floats as float32, others as whole bytes."""
    if isinstance(value, Known):
        wide = FORMATS[value.dtype].wide
        return Known(value.array.astype(wide), wide)
    codes, dtype = as_codes(node, value)
    assert dtype is not None
    row = FORMATS[dtype]
    return node.te(lambda x: te.compute(x.shape, lambda *at: number_of(x(*at), row), name="numbers"), codes)


def narrowed(node: Node, x: Any, dtype: str, *, saturates: bool = True, rounding: str = "up") -> Any:
    """Return numbers as a dtype that has codes: floats rounded, others cut off, and their low bits."""
    row = FORMATS[dtype]
    x = node.emit(cast(x, "float32" if row.is_float else "int32"))

    def codes(x: te.Tensor) -> te.Tensor:
        return te.compute(
            x.shape, lambda *at: code_of(x(*at), row, saturates=saturates, rounding=rounding), name="codes"
        )

    found = node.te(codes, x)
    assert str(found.ty.dtype.dtype) == CARRIER
    return of_codes(node, found, dtype)
