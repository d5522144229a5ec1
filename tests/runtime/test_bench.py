"""Timing: the numbers are of what was called, in turns, and survive JSON."""

from __future__ import annotations

import gc
import itertools
import json
import time

import numpy as np
import pytest

from relaxc.service.runtime.bench import BenchReport, bench, median_interval, report_of


class _Clock:
    """A clock that goes on when it is told to, in nanoseconds."""

    def __init__(self, now: list[int]) -> None:
        self.perf_counter_ns = lambda: now[0]
        self.perf_counter = lambda: now[0] / 1e9


def test_times_ratios_and_throughput_are_those_of_the_callables(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()
    monkeypatch.setattr("relaxc.service.runtime.bench.time", _Clock(now := [0]))

    def takes(ms: int) -> None:
        now[0] += ms * 1_000_000 + 1000 * (next(calls) % 7)

    report = bench(
        {"slow": lambda: takes(4), "fast": lambda: takes(2)},
        baseline="slow",
        warmup_s=0.01,
        measure_s=0.3,
        items=8,
    )
    slow, fast = report.timings
    for timing, low in ((slow, 4), (fast, 2)):
        assert low <= timing.min_ms <= timing.p50_ms <= timing.p90_ms <= timing.p95_ms <= timing.p99_ms
        assert timing.min_ms <= timing.mean_ms
        assert timing.samples == report.rounds >= 10
        assert timing.throughput == pytest.approx(8000 / timing.mean_ms, rel=1e-3)
    (ratio,) = report.ratios
    assert (ratio.name, ratio.baseline) == ("fast", "slow")
    assert ratio.p10 <= ratio.median <= ratio.p90
    assert ratio.median == pytest.approx(0.5, rel=0.01)
    assert BenchReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_callables_take_turns_and_each_timed_call_follows_one_of_its_own() -> None:
    calls: list[str] = []
    report = bench({name: lambda name=name: calls.append(name) for name in "abc"}, warmup_s=0, measure_s=0)
    assert report.rounds == 10
    turns = calls[3:]  # one warm-up call of each
    assert len(turns) == 60
    pairs = list(zip(turns[::2], turns[1::2], strict=True))
    assert all(first == second for first, second in pairs)
    rounds = [tuple(pair[0] for pair in pairs[i : i + 3]) for i in range(0, 30, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 1


def broken() -> None:
    """Raises."""
    raise RuntimeError("broken")


def test_there_is_a_minimum_of_rounds_and_the_collector_is_on_again() -> None:
    report = bench({"a": lambda: time.sleep(0.01)}, warmup_s=0, measure_s=0.001)
    assert report.rounds == 10
    assert report.ratios == ()
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="broken"):
        bench({"a": broken}, warmup_s=0, measure_s=0)
    assert gc.isenabled()


def test_a_baseline_must_be_there() -> None:
    with pytest.raises(ValueError, match="none of"):
        bench({"a": int}, baseline="b")
    with pytest.raises(ValueError, match="nothing"):
        bench({})


def test_a_ratio_is_told_only_where_its_spread_supports_it() -> None:
    def ratio_of(*factors: float) -> BenchReport:
        times = {"one": [[2.0 * factor] * 3 for factor in factors], "other": [[4.0]] * len(factors)}
        return report_of(times, {"one": 0.5, "other": 1.0}, "other", 0.0, 0.0)

    report = ratio_of(*[1.0, 1.01, 0.99] * 4)
    assert report.ratios[0].median == pytest.approx(0.5)
    assert report.timings[0].throughput == 36 / 0.5
    (unsure,) = ratio_of(*[1.0, 1.6, 0.8] * 4).ratios
    assert unsure.median is None
    assert unsure.low == pytest.approx(0.4) and unsure.high == pytest.approx(0.8)
    assert BenchReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@pytest.mark.parametrize("count", [1, 6, 12, 99, 100, 5000])
def test_the_interval_of_a_median_has_it_as_often_as_it_says(count: int) -> None:
    draw = np.random.default_rng(count)
    intervals = [median_interval(draw.standard_normal(count)) for _ in range(300)]
    share = np.mean([low <= 0 <= high for low, high in intervals])
    assert count == 1 or share > 0.9
    assert all(low <= high for low, high in intervals)
