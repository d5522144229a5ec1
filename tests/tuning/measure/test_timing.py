"""Repeats end when the median is known well enough, when there is no hope, and at the limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat

import pytest

from relaxc.service.tuning.measure import MeasureLimits
from relaxc.service.tuning.measure.timing import summary, time_until_steady

LIMITS = MeasureLimits(warm_up_runs=0, measure_s=60, min_runs=5, max_runs=40, error=0.01)


def test_a_steady_kernel_is_run_the_least() -> None:
    found = time_until_steady(lambda: 1.0, LIMITS, 10.0)
    assert (found.seconds, found.spread, found.runs) == (1.0, 0.0, 5)


def test_an_unsteady_one_is_run_until_it_is_steady() -> None:
    times = chain([1.0, 2.0, 1.0, 2.0, 1.0], repeat(1.0))
    found = time_until_steady(lambda: next(times), LIMITS, 10.0)
    assert found.seconds == 1.0
    assert 5 < found.runs < 40 and found.error <= 0.01


def test_one_that_stays_unsteady_stops_at_the_limits() -> None:
    times = chain.from_iterable(repeat([1.0, 2.0]))
    assert time_until_steady(lambda: next(times), LIMITS, 10.0).runs == 40


def test_a_hopeless_one_is_not_run_on() -> None:
    times = chain.from_iterable(repeat([1.0, 2.0]))
    assert time_until_steady(lambda: next(times), LIMITS, 0.5).runs == 5


def test_the_first_runs_do_not_count() -> None:
    times = chain([9.0, 5.0, 3.0], repeat(1.0))
    found = time_until_steady(lambda: next(times), replace(LIMITS, warm_up_runs=3), 10.0)
    assert (found.seconds, found.spread, found.runs) == (1.0, 0.0, 5)


def test_a_summary_takes_the_median_and_the_nearest_ranks() -> None:
    found = summary([float(n) for n in range(11)])
    assert found.seconds == 5.0
    assert found.spread == pytest.approx((9 - 1) / 5)
