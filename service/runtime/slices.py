"""Whether a slice of an output, such as one channel, is off by more than rounding scatters it, or all to one side.

Two right builds of a quantized network differ by what rounding scatters, and a root mean square over a whole output has
room for a channel that is zero. What scatters takes no side, is in no proportion to the values, and is as large in our
run as in the moved runs of the reference (`runtime.moved`), with which ours may be exchanged. So three figures
of each slice along each axis, and of the whole, are held against those of the moved runs, over all draws together. An
error is what a build is off from the middle of the others (`runtime.scatter`):

- `noise`: the root mean square of the errors;
- `bias`: their mean, which an offset has, or a wrong zero point, or truncation in place of rounding;
- `gain`: their regression on the values, which a slice has that is zero, or scaled, or another's.

Each in units of the slice's own scatter, the root mean square over the moved runs, to which one element that is as far
off as any is added: the last rounding moves few elements, and those that it moves here need not be those that moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaxc.service.runtime.measure import ordinary
from relaxc.service.runtime.scatter import from_the_others, from_the_rest
from relaxc.service.runtime.tolerances import DEVIATIONS, FEW, MOVED_MARGIN, TOLERANCES

__all__ = ["Slices"]

Array = np.ndarray[Any, Any]

_FIGURES = ("noise", "bias", "gain")


@dataclass
class Slices:
    """One output's slices along each axis: `add` each draw, then ask for the `worst`."""

    moments: dict[tuple[int | None, int], Array] = field(default_factory=dict)
    """Axis and length → sums over the elements of each slice: one, values, their squares; errors of each run, ours
    first; their squares; their products with the values. The last row is the largest value.
    """
    furthest: float = 0.0
    """The largest error of an element of a moved run."""
    least: float = 0.0
    """The error that the dtype's tolerance allows everywhere."""

    def add(self, got: Array, want: Array, runs: Sequence[Array]) -> None:
        """Add a draw: our output, the reference's, and those of its moved runs."""
        builds = (want, *runs)
        usual = ordinary(want) & np.isfinite(np.stack([got, *runs])).all(axis=0)
        values = np.where(usual, want, 0).astype(np.float64)
        errors = np.where(usual, np.stack([from_the_rest(got, builds), *from_the_others(builds)[1:]]), 0.0)
        self.furthest = max(self.furthest, float(np.abs(errors[1:]).max(initial=0.0)))
        size = math.sqrt(float(np.mean(np.square(values)))) if values.size else 0.0
        self.least = max(self.least, TOLERANCES["float32"].error * size)
        for axis in (None, *(axis for axis, length in enumerate(want.shape) if length > 1)):
            found = _moments(values, errors, usual, axis)
            key = axis, found.shape[1]
            largest = np.maximum(found[-1], self.moments[key][-1]) if key in self.moments else found[-1]
            self.moments[key] = found + self.moments.get(key, 0.0)
            self.moments[key][-1] = largest

    def worst(self) -> tuple[float, str]:
        """Return the largest figure over its bound, and what to say of it: over 1 the output is wrong."""
        return max(self._found(), default=(0.0, ""))

    def _found(self) -> Iterator[tuple[float, str]]:
        for (axis, _), moments in self.moments.items():
            where = "all of it" if axis is None else f"slice {{}} of axis {axis}"
            for name, (ours, bound) in _figures(moments, self.furthest, self.least).items():
                ratio = np.divide(ours, bound, out=np.zeros_like(ours), where=bound > 0)
                at = int(ratio.argmax())
                text = f"{where.format(at)} is off by {ours[at]:.3g} of its scatter ({name}), over {bound[at]:.3g}"
                yield float(ratio[at]), text


def _moments(values: Array, errors: Array, usual: Array, axis: int | None) -> Array:
    others = tuple(each for each in range(values.ndim) if each != axis)

    def total(array: Array) -> Array:
        lead = array.ndim - values.ndim
        return np.asarray(array.sum(axis=tuple(each + lead for each in others)).reshape(*array.shape[:lead], -1))

    largest = np.abs(values).max(axis=others, initial=0.0).reshape(1, -1)
    plain = np.stack([total(usual.astype(np.float64)), total(values), total(np.square(values))])
    return np.concatenate([plain, total(errors), total(np.square(errors)), total(errors * values), largest])


def _figures(moments: Array, furthest: float, least: float) -> dict[str, tuple[Array, Array]]:
    """Name → our figure of each slice, and its bound, both in units of the slice's scatter."""
    count, sums, squares = np.maximum(moments[0], 1), moments[1], moments[2]
    errors, square_errors, products = np.split(moments[3:-1], 3)
    mean = sums / count
    spread = np.sqrt(np.maximum(squares / count - np.square(mean), 0.0))
    noise = np.sqrt(square_errors / count)
    scatter = np.sqrt(np.mean(np.square(noise[1:]), axis=0) + furthest**2 / count + least**2)
    bias = np.abs(errors / count)
    apart = np.abs(products / count - errors / count * mean)
    gain = np.divide(apart, spread, out=np.zeros_like(apart), where=spread > least)
    leverage = np.divide(moments[-1] + np.abs(mean), spread, out=np.ones_like(mean), where=spread > least)
    one = MOVED_MARGIN * furthest / count / scatter  # what one element makes
    alone = {"noise": one * np.sqrt(count), "bias": one, "gain": one * np.maximum(leverage, 1.0)}
    found = {}
    for name, figure in zip(_FIGURES, (noise, bias, gain), strict=True):
        units = figure / scatter
        bound = MOVED_MARGIN * float(units[1:].max())
        if name != "noise":  # which is of one sign, and a mean already
            bound = max(bound, DEVIATIONS * (1 + FEW / units[1:].size) * math.sqrt(float(np.mean(units[1:] ** 2))))
        found[name] = units[0], np.maximum(bound, alone[name] + least / scatter)
    return found
