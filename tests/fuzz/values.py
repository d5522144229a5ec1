"""Arrays to compute with: ordinary ones, and those that have a dtype's special values among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.case import Array
from tests.fuzz.evaluate import is_float

__all__ = ["DTYPES", "drawn", "special"]

DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
        "uint64", "bool",
    )
}  # fmt: skip
"""What values of a graph may be, by name."""


def drawn(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return numbers of a size that most operators make something of."""
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if is_float(dtype):
        kind = rng.integers(4)
        if kind == 0:
            return np.asarray(rng.uniform(0.1, 2, shape)).astype(dtype)
        if kind == 1:
            return np.asarray(rng.integers(-4, 5, shape)).astype(dtype)
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    least = 0 if np.issubdtype(dtype, np.unsignedinteger) else -9
    return np.asarray(rng.integers(least, 10, shape)).astype(dtype)


def special(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return numbers of which a third are NaN, infinite, zeros of either sign, the least and largest, or denormal."""
    values = drawn(rng, shape, dtype)
    if dtype == np.bool_ or not values.size:
        return values
    extremes = np.array(_extremes(dtype)).astype(dtype)
    return np.where(rng.random(shape) < 0.3, rng.choice(extremes, shape), values).astype(dtype)


def _extremes(dtype: np.dtype[Any]) -> list[Any]:
    if is_float(dtype):
        info = ml_dtypes.finfo(dtype)
        sizes = [0.0, 1.0, float(info.max), float(info.tiny), float(info.smallest_subnormal), np.inf]
        return [np.array(each).astype(dtype) for each in [*sizes, *(-each for each in sizes), np.nan]]
    info = np.iinfo(dtype)
    whole = [info.min, info.max, info.max - 1, info.min + 1, 0, 1, info.max // 2, info.max // 3]
    return [np.array(each, dtype) for each in whole]
