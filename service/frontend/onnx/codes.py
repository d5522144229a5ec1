"""Values of element types that TVM lacks: as their codes, a byte each, which operators that only move elements move."""

from __future__ import annotations

import copy
from typing import Any

from relaxc.service.codes import CARRIER, FORMATS
from relaxc.service.frontend.onnx.node import DTYPES, Node
from relaxc.service.frontend.onnx.values import Coded, Known

__all__ = ["as_codes", "codes_moved", "numbers_moved", "of_codes"]

_MOVES = frozenset({"Flatten", "Pad", "Reshape", "Squeeze", "TensorScatter", "Transpose", "Unsqueeze"})
"""Those that ONNX has for such types; `Identity` passes on whatever it gets."""


def codes_moved(node: Node) -> tuple[Node, str | None]:
    """Return a node that only moves elements with their codes for what has some, and the dtype; others as they are."""
    inputs = [_coded(node, value) for value in node.inputs] if node.op in _MOVES else []
    dtype = next((value.dtype for value in inputs if isinstance(value, Coded)), None)
    if dtype is None:
        return node, None
    inner = copy.copy(node)
    inner.inputs = [value.codes if isinstance(value, Coded) else value for value in inputs]
    return inner, dtype


def numbers_moved(value: Any, dtype: str | None) -> Any:
    """Return what such a node gave as values of the dtype."""
    if dtype is None or value is None:
        return value
    if isinstance(value, Known):
        return Known(value.array.view(Node.numpy_dtype(dtype)), dtype)
    return Coded(value, dtype)


def _coded(node: Node, value: Any) -> Any:
    if isinstance(value, Known) and value.dtype in FORMATS and value.dtype not in DTYPES:
        return Coded(node.const(value.array.view(CARRIER), CARRIER), value.dtype)
    return value


def as_codes(node: Node, value: Any) -> tuple[Any, str | None]:
    """Return a value as a tensor, and the dtype that this has the codes of, if any."""
    value = _coded(node, value)
    if isinstance(value, Coded):
        return value.codes, value.dtype
    x = node.materialize(value)
    dtype = str(x.ty.dtype.dtype)
    return (node.bits(x, CARRIER), dtype) if dtype in FORMATS else (x, None)


def of_codes(node: Node, codes: Any, dtype: str) -> Any:
    """Return the value that has these codes."""
    return node.bits(codes, dtype) if dtype in DTYPES else Coded(codes, dtype)
