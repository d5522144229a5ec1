"""The errors of one float output over all its elements, in double precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FLOOR", "OUTLIER", "Measured", "measure", "ordinary"]

Array = np.ndarray[Any, Any]

FLOOR = 1e-6
"""Least scale of a tensor: below it, differences are noise of what cancelled out."""

OUTLIER = 1e3
"""Elements this many times the median of the nonzero ones do not count for a tensor's size and direction: one mask
filler of -3.4e38 would make every other error look like nothing."""


@dataclass(slots=True)
class Measured:
    """Counts of elements, masks and arrays over them, and the largest errors; `cosine` None for a tensor of zeros,
    `rms` the root mean square of the errors over that of the values.
    """

    finite: int
    infinite: int
    nonfinite: int
    mismatches: int
    mismatched: Array
    scaled: Array
    max_abs: float
    max_rel: float
    max_scaled: float
    cosine: float | None
    rms: float


def measure(got: Array, want: Array) -> Measured:
    """Return errors over the elements that are finite on both sides, in double precision.

    Much is done in place: the logits of a language model are 50 MB in double precision, and each array of that size
    comes from the system anew.
    """
    finite = np.isfinite(want) & np.isfinite(got)
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = finite | (np.isnan(a) & np.isnan(b)) | (a == b)
    error = np.subtract(a, b, where=finite, out=np.zeros_like(b))
    np.abs(error, out=error)
    size = np.where(finite, b, 0.0)
    np.abs(size, out=size)
    usual = finite & ordinary(want)
    rms = _rms(_where(size, usual))
    scaled = np.asarray(size + max(rms, FLOOR))
    np.divide(error, scaled, out=scaled)
    relative = np.divide(error, size, where=size > 0, out=size)  # where it is 0 that is the result too
    return Measured(
        finite=int(np.count_nonzero(finite)),
        infinite=int(np.count_nonzero(np.isinf(b) & (a == b))),
        nonfinite=int(want.size - np.count_nonzero(np.isfinite(want))),
        mismatches=int(want.size - np.count_nonzero(same)),
        mismatched=~same,
        scaled=scaled,
        max_abs=float(error.max(initial=0.0)),
        max_rel=float(relative.max(initial=0.0)),
        max_scaled=float(scaled.max(initial=0.0)),
        cosine=_cosine(_where(a, usual), _where(b, usual)) if rms > FLOOR else None,
        rms=_rms(_where(error, usual)) / max(rms, FLOOR),
    )


def ordinary(values: Array) -> Array:
    """Return which elements count for a tensor's size: those that are finite, outliers left out."""
    finite = np.isfinite(values)
    size = np.array(np.where(finite, values, 0), np.float64)
    np.abs(size, out=size)
    return np.asarray(finite & (size <= OUTLIER * _median_in_place(size[size > 0])))


def _where(values: Array, usual: Array) -> Array:
    """The elements of a mask, in order; not copied where these are all."""
    return np.reshape(values, -1) if usual.all() else values[usual]


def _median_in_place(values: Array) -> float:
    return float(np.median(values, overwrite_input=True)) if values.size else 0.0


def _rms(values: Array) -> float:
    largest = float(values.max(initial=0.0))
    if not largest:
        return 0.0
    squares = values / largest
    np.square(squares, out=squares)
    return largest * math.sqrt(float(np.mean(squares)))


def _cosine(a: Array, b: Array) -> float:
    """The cosine of the angle between two vectors, the second of which is not zero."""
    largest = max(float(max(each.max(), -each.min())) for each in (a, b))
    a, b = a / largest, b / largest
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return min(1.0, float(a @ b) / norms) if norms else 0.0
