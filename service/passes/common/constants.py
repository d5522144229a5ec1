"""Tensor constants of a module, as numpy arrays and back."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, runtime
from tvm.ir import GenericConst

from relaxc.service.process.copying import copy_into

__all__ = ["Array", "array_of", "constant", "is_tensor_constant", "numpy_dtype", "size_bytes"]

Array = np.ndarray[Any, Any]

_RAW = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}
"""Dtypes that numpy does not have, and ml_dtypes does, and those of their bits."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a TVM dtype name, bfloat16 and 8-bit floats included."""
    return np.dtype(getattr(ml_dtypes, name)) if name in _RAW else np.dtype(name)


def constant(array: Any, dtype: str | None = None) -> relax.Expr:
    """Return a tensor constant that holds `array`, which keeps its dtype unless `dtype` names another."""
    given = np.asarray(array)
    name = str(given.dtype) if dtype is None else dtype
    tensor = runtime.empty(given.shape, name)
    raw = _RAW.get(name)
    # Straight into TVM's memory, whatever the strides: a copy between would be of all weights of a model.
    held = np.from_dlpack(tensor if raw is None else tensor._create_view(tensor.shape, raw))
    copy_into(held if raw is None else held.view(numpy_dtype(name)), given)
    return relax.const(tensor)


def is_tensor_constant(expr: relax.Expr) -> bool:
    """Return whether `expr` is a constant that holds a tensor."""
    return isinstance(expr, GenericConst) and isinstance(expr.ty, relax.TensorType)


def size_bytes(tensor: Any) -> int:
    """Return the size of a tvm tensor's elements."""
    return math.prod(int(size) for size in tensor.shape) * numpy_dtype(str(tensor.dtype)).itemsize


def array_of(expr: relax.Expr) -> Array:
    """Return the value of a tensor constant, not copied where numpy knows the dtype; not to be written to."""
    if not is_tensor_constant(expr):
        raise TypeError(f"{expr} is not a tensor constant")
    array: Array = expr.value.numpy() if str(expr.ty.dtype) in _RAW else np.from_dlpack(expr.value)
    return array
