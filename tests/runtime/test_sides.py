"""Sides in processes of their own: turns, what is stopped in between, and what becomes of one that fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from relaxc.service.errors import ArtifactError
from relaxc.service.runtime.others import Others
from relaxc.service.runtime.sides import Side, by_turns
from tests.waiting import until

HERE = __name__


def counter(value: int) -> Callable[[], dict[str, object]]:
    """For the other process: counts its calls and the threads that make them."""
    seen: dict[str, object] = {"value": value, "pid": os.getpid(), "calls": 0}
    threads: set[int] = set()

    def call() -> dict[str, object]:
        threads.add(threading.get_ident())
        seen["calls"], seen["threads"] = int(str(seen["calls"])) + 1, len(threads)
        time.sleep(0.001)
        print("not an answer")
        return dict(seen)

    return call


def broken() -> Callable[[], None]:
    raise ValueError("no such thing")


def fatal() -> Callable[[], None]:
    return lambda: os._exit(3)


def test_sides_take_turns_in_processes_of_their_own() -> None:
    sides = {name: partial(Side, name, f"{HERE}:counter", value) for value, name in enumerate(("one", "other"))}
    report, outputs = by_turns(sides, baseline="other", measure_s=0.1, warmup_s=0.0)
    assert [outputs[name]["value"] for name in sides] == [0, 1]
    assert len({os.getpid(), *(outputs[name]["pid"] for name in sides)}) == 3
    assert report.rounds >= 6
    assert all(timing.samples >= 3 * report.rounds and timing.min_ms >= 1 for timing in report.timings)
    assert len(report.ratios) == 1 and report.other_cores is not None


def test_streams_are_threads_that_call_at_a_time() -> None:
    side = Side("one", f"{HERE}:counter", 0, streams=3)
    try:
        times, seconds = side.turn(0.02)
        assert len(times) >= 9 and sum(times) / 1e3 <= 3 * seconds
        assert side.outputs()["threads"] == 4  # and the one that warms up
    finally:
        side.close()


def test_a_side_that_is_stopped_runs_no_thread() -> None:
    side = Side("one", f"{HERE}:counter", 0)
    try:
        side.stop()
        until(lambda: Path(f"/proc/{side.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        side.go_on()
        assert side.turn(0.0)[0]
    finally:
        side.close()


@pytest.mark.parametrize(("make", "said"), [("broken", "ValueError: no such thing"), ("fatal", "ended by itself")])
def test_a_side_that_fails_is_an_error(make: str, said: str) -> None:
    with pytest.raises(ArtifactError, match=said):
        by_turns({"one": partial(Side, "one", f"{HERE}:{make}")}, baseline=None, measure_s=0.1)


def test_others_are_counted_without_our_own_processes(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "7").mkdir()

    def write(busy: int, own: int) -> None:
        rows = [f"cpu{core} {busy} 0 0 900 50 0 0 0 0 0" for core in cores]
        (tmp_path / "stat").write_text("\n".join(["cpu 1 2 3 4", *rows, "cpu99999 500 0 0 0 0 0 0 0 0 0", "btime 1"]))
        (tmp_path / "7/stat").write_text(f"7 (a) b) S {' '.join(['0'] * 10)} {own} 0 0")

    write(100, 50)
    others = Others([7, 12345678], tmp_path)
    others._start -= 10
    write(100 + 10 * ticks, 50 + 10 * ticks * len(cores))
    assert others.cores() == 0
    write(100 + 10 * ticks, 50)
    assert others.cores() == pytest.approx(len(cores), rel=0.2)
