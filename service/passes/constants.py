"""Tensor constants of a module, as numpy arrays and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, runtime

from service.passes.rewrite import is_tensor_constant

__all__ = ["Array", "array_of", "constant", "numpy_dtype"]

Array = np.ndarray[Any, Any]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a TVM dtype name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def constant(array: Any, dtype: str | None = None) -> relax.Expr:
    """A tensor constant that holds `array`, which keeps its dtype unless `dtype` names another."""
    wanted = np.asarray(array) if dtype is None else np.asarray(array).astype(numpy_dtype(dtype))
    return relax.const(runtime.tensor(np.ascontiguousarray(wanted).reshape(wanted.shape)))


def array_of(expr: relax.Expr) -> Array:
    """The value of a tensor constant."""
    if not is_tensor_constant(expr):
        raise TypeError(f"{expr} is not a tensor constant")
    array: Array = expr.value.numpy()
    return array
