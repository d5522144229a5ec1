"""How far right builds of a quantized network are from each other, and from what is not rounded.

A value on a rounding boundary falls a step to either side, and a deep network carries that to all of its outputs: each
right build, ONNX Runtime's too, is one draw of many. Two of them are sqrt(2) times as far from each other as both are
from the middle of all, and may be further apart than from the network that is not rounded. So a build is held against
the middle of the reference and its moved runs (`runtime.moved`), and it may be as far from that as each of
these is from the middle of the others; likewise as far from what is not rounded as they are.

A mean of n draws is itself off by 1/n of their variance, so distances from it are over sqrt(1 + 1/n) here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxc.service.runtime.measure import FLOOR, ordinary
from relaxc.service.runtime.tolerances import DEVIATIONS, FAR_MARGIN, FEW, LONE_MARGIN, MOVED_MARGIN

__all__ = ["Scatter", "from_the_others", "from_the_rest", "scatter_of"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Scatter:
    """Of one output: what right builds are near to, and how far from that they may be. Distances are root mean squares
    over that of the values.
    """

    builds: tuple[Array, ...]
    """The reference's output, and those of its moved runs."""
    real: Array | None
    """What is not rounded, where that is known."""
    usual: Array
    """Which elements count: outliers do not, nor what is infinite in a build."""
    bound: float
    """From the middle: what rounding scatters, and no more than the reference is off from what is not rounded, or any
    run where that is about as far as rounding scatters: then the reference's own is a draw that most may be over."""
    far: float
    """From what is not rounded."""

    def distances(self, got: Array) -> tuple[float, float]:
        """Return how far an output is from the middle, and how far from what is not rounded."""
        near = _size(from_the_rest(got, self.builds), self.builds[0], self.usual)
        return near, _apart(got, self.real, self.usual)


def scatter_of(want: Array, runs: Sequence[Array], real: Array | None, *, alike: bool) -> Scatter:
    """Return how the output `want` of the reference and those of its moved runs scatter. There is at least one run.

    The runs of a model in 16 bits are not `alike` a right build, which rounds in more places than they move.
    """
    builds = (want, *runs)
    usual = ordinary(want) & np.isfinite(_sum([*builds, *([real] if real is not None else [])]))
    near = [_size(error, want, usual) for error in from_the_others(builds)]
    far = [_apart(build, real, usual) for build in builds]
    limits = [MOVED_MARGIN * max(near), *([_most(near)] if alike else [])]
    if real is not None:
        limits.append(far[0] if far[0] >= LONE_MARGIN * max(near) else max(far))
    return Scatter(builds, real, usual, min(limits), max(FAR_MARGIN * max(far), _most(far)))


def from_the_rest(got: Array, builds: Sequence[Array]) -> Array:
    """Return how far each element is from the middle of `builds`; infinite ones are NaN."""
    return _over(got, _sum(builds), len(builds))


def from_the_others(builds: Sequence[Array]) -> list[Array]:
    """Return how far each element of each build is from the middle of the others."""
    total = _sum(builds)
    with np.errstate(invalid="ignore"):
        return [_over(each, total - each, len(builds) - 1) for each in builds]


def _sum(builds: Sequence[Array]) -> Array:
    total = np.zeros(builds[0].shape, np.float64)
    with np.errstate(invalid="ignore"):
        for build in builds:
            total += build
    return total


def _over(got: Array, total: Array, count: int) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray((got - total / count) / math.sqrt(1 + 1 / count))


def _apart(build: Array, real: Array | None, usual: Array) -> float:
    if real is None:
        return 0.0
    with np.errstate(invalid="ignore"):
        return _size(np.subtract(build, real, dtype=np.float64), real, usual)


def _size(error: Array, values: Array, usual: Array) -> float:
    return _rms(error, usual) / max(_rms(values, usual), FLOOR)


def _rms(values: Array, usual: Array) -> float:
    flat = (values.reshape(-1) if usual.all() else values[usual]).astype(np.float64, copy=False)
    return math.sqrt(float(flat @ flat) / flat.size) if flat.size else 0.0


def _most(values: Sequence[float]) -> float:
    """What one more of them is not over, of a normal distribution."""
    return float(np.mean(values) + DEVIATIONS * (1 + FEW / len(values)) * np.std(values, ddof=1))
