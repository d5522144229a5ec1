"""The model of many workers: what it says of one, of very many, and where it bends."""

from __future__ import annotations

import pytest

from benchmarks.scale.model import Station, saturation, solve

LOCK, CPU = Station("lock", 0.01), Station("cpu", 0.04, servers=8)


def test_one_worker_waits_for_nobody() -> None:
    (one,) = solve([1], 2.0, [LOCK, CPU])
    assert one.per_s == pytest.approx(1 / 2.05)


def test_many_workers_have_what_the_busiest_station_bears() -> None:
    found = solve([1, 10, 10_000], 2.0, [LOCK, CPU])
    assert found[1].per_s == pytest.approx(10 / 2.05, rel=0.01)
    assert found[2].per_s == pytest.approx(100.0, rel=0.01)
    assert (found[2].first, found[2].busy["lock"]) == ("lock", pytest.approx(1.0, rel=0.01))


def test_the_knee_is_where_the_asymptotes_meet() -> None:
    first, workers, per_s = saturation(2.0, [LOCK, CPU])
    assert (first, per_s) == ("lock", pytest.approx(100.0))
    assert workers == pytest.approx(205.0)
