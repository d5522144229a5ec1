"""Tensor constants of a module, as numpy arrays and back."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, runtime
from tvm.ir import GenericConst

__all__ = ["Array", "array_of", "constant", "is_tensor_constant", "numpy_dtype", "size_bytes"]

Array = np.ndarray[Any, Any]

_OTHERS = ("bfloat16", "float8_e4m3fn")
"""Dtypes that numpy does not have, and ml_dtypes does."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a TVM dtype name, bfloat16 and 8-bit floats included."""
    return np.dtype(getattr(ml_dtypes, name)) if name in _OTHERS else np.dtype(name)


def constant(array: Any, dtype: str | None = None) -> relax.Expr:
    """Return a tensor constant that holds `array`, which keeps its dtype unless `dtype` names another."""
    wanted = np.asarray(array) if dtype is None else np.asarray(array).astype(numpy_dtype(dtype))
    return relax.const(runtime.tensor(np.ascontiguousarray(wanted).reshape(wanted.shape)))


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
    array: Array = expr.value.numpy() if str(expr.ty.dtype) in _OTHERS else np.from_dlpack(expr.value)
    return array
