"""Repeats until the median is known well enough, and what the repeats say: median, its error, and spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from statistics import median

from relaxc.service.tuning.measure.outcome import MeasureLimits

__all__ = ["Timing", "summary", "time_until_steady"]


@dataclass(frozen=True, slots=True)
class Timing:
    """The median of `runs` runs in seconds, (p90 - p10) / median, and the standard error of the median over it."""

    seconds: float
    spread: float
    runs: int
    error: float = 0.0


def time_until_steady(run: Callable[[], float], limits: MeasureLimits, hopeless_s: float) -> Timing:
    """Call `run`, which returns seconds, as often as `limits` say: see MeasureLimits. The first do not count."""
    for _ in range(limits.warm_up_runs):
        run()
    end = time.perf_counter() + limits.measure_s
    seconds: list[float] = []
    while len(seconds) < limits.max_runs:
        seconds.append(run())
        if len(seconds) < limits.min_runs:
            continue
        if time.perf_counter() > end or min(seconds) > hopeless_s or summary(seconds).error <= limits.error:
            break
    return summary(seconds)


def summary(seconds: Sequence[float], tail: float = 0.1) -> Timing:
    """Return what the repeats say; the spread leaves out a share `tail` of them at each end, by the nearest rank."""
    ordered = sorted(seconds)
    middle = median(ordered)
    last = len(ordered) - 1
    spread = (ordered[round((1 - tail) * last)] - ordered[round(tail * last)]) / middle if middle else 0.0
    return Timing(middle, spread, len(ordered), _error(ordered) / middle if middle else 0.0)


def _error(ordered: Sequence[float]) -> float:
    """The standard error of the median, whatever the distribution: virtual machines have long tails.

    Half of the distance between the values whose ranks are one standard deviation of the binomial distribution from
    the middle: David and Nagaraja, 'Order statistics' (2003), section 7.1.
    """
    last = len(ordered) - 1
    away = sqrt(len(ordered)) / 2
    low, high = max(0, floor(last / 2 - away)), min(last, ceil(last / 2 + away))
    return (ordered[high] - ordered[low]) / 2
