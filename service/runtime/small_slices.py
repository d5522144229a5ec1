"""Slices of an output that are small beside the rest of it, such as a column of numbers near 1 beside one near 1e6.

An error is scaled by the whole output (`compare`), so one of a small slice looks like nothing. Scaled by its slice it
may be large in a right build: what is left of larger values that cancelled out is off by their last digits. How far is
found with the reference alone, each of whose values is moved by a share of the tolerance (`Move.VALUES`), and only
where a slice is in doubt: its largest error is over the tolerance of its own size. A slice of few elements may be small
by chance, as a logit is; that is none in doubt.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaxc.service.runtime.measure import ordinary
from relaxc.service.runtime.tolerances import MOVED_MARGIN

__all__ = ["SHARE", "SmallSlices"]

Array = np.ndarray[Any, Any]
Key = tuple[int, int]
"""An axis and its length, which may differ from draw to draw."""

SHARE = 2.0**-5
"""Of the tolerance: how far each value of the reference is moved. Of float32 it is 3e-6, 50 units in the last place, as
much as Winograd's transforms and quick approximations of exp and erf lose."""

_CHANCE = 1e-6
"""Odds under which no slice of normal values is as small as one by chance."""

_SLICES, _ELEMENTS = 256, 64
"""Of which `_freedom` is told at the most."""

_LEAST = {"float64": 1e-290, "float32": 1e-30, "bfloat16": 1e-30, "float16": 2.0**-14}
"""Errors that are none, by the dtype that judges: near what it has no normal numbers for."""


@dataclass
class _Sums:
    """Of each slice along an axis: elements, their squares, and the largest error; and of how many independent numbers
    a slice seems to be.
    """

    count: Array
    squares: Array
    error: Array
    freedom: float = 0.0

    def __add__(self, other: _Sums) -> _Sums:
        error = np.maximum(self.error, other.error)
        freedom = self.freedom + other.freedom
        return _Sums(self.count + other.count, self.squares + other.squares, error, freedom)

    @property
    def size(self) -> Array:
        """The root mean square of each slice."""
        return np.asarray(np.sqrt(self.squares / np.maximum(self.count, 1)))


@dataclass
class SmallSlices:
    """One output's slices: `add` each draw, and where any are in `doubt`, each draw's `moved` runs; then ask for the
    `worst`.
    """

    tolerance: float
    judge: str
    sums: dict[Key, _Sums] = field(default_factory=dict)
    free: defaultdict[Key, float | Array] = field(default_factory=lambda: defaultdict(float))
    """The largest error of each slice in the moved runs."""

    def add(self, got: Array, want: Array) -> None:
        """Add a draw: our output and the reference's."""
        for key, found in _slices(got, want):
            if (found.error > self.tolerance * found.size).any():
                found.freedom = _freedom(want, key[0])
            self.sums[key] = self.sums[key] + found if key in self.sums else found

    def moved(self, runs: Sequence[Array], want: Array) -> None:
        """Add what moved runs of the reference gave in a draw."""
        for run in runs:
            for key, found in _slices(run, want):
                self.free[key] = np.maximum(self.free[key], found.error)

    def doubt(self) -> bool:
        """Return whether a slice is off by more than the tolerance of its size, which it does not have by chance."""
        return any(self._doubtful(sums).any() for sums in self.sums.values())

    def worst(self) -> tuple[float, str]:
        """Return the largest error of a slice in doubt over what it may be, and what to say: over 1 it is wrong."""
        return max(self._found(), default=(0.0, ""))

    def _doubtful(self, sums: _Sums) -> Array:
        large = (sums.error > self.tolerance * sums.size) & (sums.error > _LEAST[self.judge]) & (sums.count > 0)
        return large & (_odds(sums) < _CHANCE) if large.any() else large

    def _found(self) -> Iterator[tuple[float, str]]:
        for key, sums in self.sums.items():
            doubtful = self._doubtful(sums)
            if doubtful.any():
                bound = np.maximum(self.tolerance * sums.size, MOVED_MARGIN * self.free[key]) + _LEAST[self.judge]
                ratio = np.where(doubtful, sums.error / bound, 0.0)
                at = int(ratio.argmax())
                yield (
                    float(ratio[at]),
                    (
                        f"slice {at} of axis {key[0]}, of size {sums.size[at]:.3g}, is off by {sums.error[at]:.3g}, "
                        f"over the {bound[at]:.3g} that rounding may cause"
                    ),
                )


def _slices(got: Array, want: Array) -> Iterator[tuple[Key, _Sums]]:
    usual = ordinary(want) & np.isfinite(got)
    values = np.where(usual, want, 0).astype(np.float64)
    errors = np.abs(np.where(usual, got, 0).astype(np.float64) - values)
    squares = np.square(values)
    for axis, length in enumerate(want.shape):
        if length > 1:
            others = tuple(each for each in range(want.ndim) if each != axis)
            count = usual.sum(axis=others)
            yield (axis, length), _Sums(count, squares.sum(axis=others), errors.max(axis=others, initial=0.0))


def _odds(sums: _Sums) -> Array:
    """How many slices of normal values of the whole's size are to be expected as small as each: a bound of the
    chi-squared distribution's tail, which is near it for small ones.
    """
    count = np.maximum(sums.count, 1).astype(np.float64)
    whole = max(float(sums.squares.sum() / count.sum()), np.finfo(np.float64).tiny)
    half = max(sums.freedom, 1.0) / 2
    with np.errstate(divide="ignore"):
        log = half * np.log(half * (sums.squares / count / whole))
    return np.asarray(len(count) * np.exp(np.minimum(log - math.lgamma(half + 1), 0.0)))


def _freedom(values: Array, axis: int) -> float:
    """Of how many independent numbers the slices along an axis seem to be: the participation ratio of their elements'
    correlations. The rows of logits for a few tokens that are alike are a few numbers, however many there are.
    """
    slices = np.moveaxis(values, axis, 0)[:: -(-values.shape[axis] // _SLICES)]
    slices = slices.reshape(len(slices), -1)
    slices = slices[:, :: -(-slices.shape[1] // _ELEMENTS)].astype(np.float64)
    sizes = np.sqrt(np.square(slices).sum(axis=1, keepdims=True))
    slices = np.divide(slices, sizes, out=np.zeros_like(slices), where=np.isfinite(sizes) & (sizes > 0))
    correlations = slices.T @ slices
    total, count = float(np.square(correlations).sum()), len(slices)
    found = float(np.trace(correlations)) ** 2 / total if total else 1.0
    # Of n independent numbers so many slices show n count / (n + count).
    return min(found * count / (count - found), float(slices.shape[1])) if found < count else float(slices.shape[1])
