"""Timing several callables side by side, so that what slows the machine down slows all of them."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

__all__ = ["BenchReport", "Ratio", "Timing", "bench", "median_interval", "report_of"]

_MIN_ROUNDS = 10
_MAX_ROUNDS = 100_000
_LOUD_CORES = 0.1
_MANY = 100
_WIDEST = 1.1
"""`high` over `low` of a ratio that is told."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one callable, in milliseconds; `throughput` is items a second at the mean."""

    name: str
    samples: int
    min_ms: float
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    std_ms: float
    throughput: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of `name` over the time of the baseline in the same round: the median, and the spread p10..p90.

    Below 1 is faster than the baseline. `low` and `high` are where the median of more rounds would be, with 95 %;
    the median is None where they are too far apart to say it.
    """

    name: str
    baseline: str
    median: float | None
    p10: float
    p90: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Every callable's timing, and its ratio to the baseline if there is one."""

    rounds: int
    warmup_s: float
    timings: tuple[Timing, ...]
    ratios: tuple[Ratio, ...]
    other_cores: float | None = None
    """How many cores other processes took meanwhile; None where nobody looked."""

    @property
    def is_loud(self) -> bool:
        """Whether others took so much that the times are not the machine's."""
        return self.other_cores is not None and self.other_cores > _LOUD_CORES

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; `from_dict` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> BenchReport:
        """Return the report that `to_dict` described."""
        return BenchReport(
            data["rounds"],
            data["warmup_s"],
            tuple(Timing(**row) for row in data["timings"]),
            tuple(Ratio(**row) for row in data["ratios"]),
            data["other_cores"],
        )


def bench(
    callables: Mapping[str, Callable[[], object]],
    *,
    baseline: str | None = None,
    warmup_s: float = 0.5,
    measure_s: float = 3.0,
    items: int = 1,
    seed: int = 0,
) -> BenchReport:
    """Time the callables for `measure_s` seconds in all, at least 10 rounds, after `warmup_s` seconds for each.

    A round runs each of them once, in an order drawn anew. Before its timed call each runs once untimed: another
    runtime's worker threads spin for a while after its call, and its data has pushed ours out of the caches.
    `items` is how many a call handles, for the throughput. The garbage collector rests meanwhile.
    """
    if not callables or (baseline is not None and baseline not in callables):
        raise ValueError(f"nothing to time, or the baseline {baseline!r} is none of {list(callables)}")
    times: dict[str, list[float]] = {name: [] for name in callables}
    order, rng = list(callables), random.Random(seed)
    with _no_collection():
        for run in callables.values():
            _warm_up(run, warmup_s)
        end = time.perf_counter() + measure_s
        while _goes_on(len(times[order[0]]), end):
            rng.shuffle(order)
            for name in order:
                callables[name]()
                start = time.perf_counter_ns()
                callables[name]()
                times[name].append((time.perf_counter_ns() - start) / 1e6)
    rounds = min(map(len, times.values()))
    timings = tuple(_timing(name, np.array(times[name]), items) for name in callables)
    return BenchReport(rounds, warmup_s, timings, _ratios(times, baseline))


def _goes_on(rounds: int, end: float) -> bool:
    return rounds < _MIN_ROUNDS or (rounds < _MAX_ROUNDS and time.perf_counter() < end)


def _warm_up(run: Callable[[], object], seconds: float) -> None:
    end = time.perf_counter() + seconds
    run()
    while time.perf_counter() < end:
        run()


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _timing(name: str, times: np.ndarray[Any, Any], items: int) -> Timing:
    p50, p90, p95, p99 = (round(float(p), 6) for p in np.percentile(times, [50, 90, 95, 99]))
    mean = float(times.mean())
    low, std = round(float(times.min()), 6), round(float(times.std()), 6)
    return Timing(name, len(times), low, round(mean, 6), p50, p90, p95, p99, std, round(items / mean * 1e3, 3))


def report_of(
    times: Mapping[str, Sequence[list[float]]],
    taken_s: Mapping[str, float],
    baseline: str | None,
    warmup_s: float,
    other_cores: float,
) -> BenchReport:
    """Return the report of what was called several times a round: its milliseconds by round, and the seconds of all
    calls, which several threads may have made at a time. A ratio is of the medians of a round.
    """
    timings = []
    for name, rounds in times.items():
        flat = np.array([one for each in rounds for one in each])
        timing = _timing(name, flat, 1)
        timings.append(replace(timing, throughput=round(len(flat) / taken_s[name], 3)))
    medians = {name: [float(np.median(each)) for each in rounds] for name, rounds in times.items()}
    count = min(map(len, medians.values()))
    return BenchReport(count, warmup_s, tuple(timings), _ratios(medians, baseline), other_cores)


def _ratios(times: Mapping[str, list[float]], baseline: str | None) -> tuple[Ratio, ...]:
    if baseline is None:
        return ()
    base = np.array(times[baseline])
    return tuple(_ratio(name, baseline, np.array(of) / base) for name, of in times.items() if name != baseline)


def _ratio(name: str, baseline: str, ratios: np.ndarray[Any, Any]) -> Ratio:
    p10, median, p90 = (round(float(p), 4) for p in np.percentile(ratios, [10, 50, 90]))
    low, high = (round(float(each), 4) for each in median_interval(ratios))
    return Ratio(name, baseline, median if high <= _WIDEST * low else None, p10, p90, low, high)


def median_interval(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the values between which the median of the distribution is with 95 %, by their order alone: half of them
    are below it, as of coins that fall (https://en.wikipedia.org/wiki/Sign_test). Of fewer than six all.
    """
    count, found = len(values), np.sort(values)
    place = int(count / 2 - 0.98 * math.sqrt(count))  # near enough where there are many
    if count < _MANY:
        sums = np.cumsum([math.comb(count, below) * 0.5**count for below in range(count)])
        place = int(np.searchsorted(sums, 0.025, side="right")) - 1
    place = max(place, 0)
    return float(found[place]), float(found[count - 1 - place])
