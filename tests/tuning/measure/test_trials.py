"""What a runner does before it times: it sees to the numbers, wakes the cores, and throws the first runs away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from relaxc.service.tuning.measure import MeasureLimits, probe
from relaxc.service.tuning.measure.messages import Compare, Reference, Run, Subject
from relaxc.service.tuning.measure.trials import Trials, Turns
from tests.tuning.measure.bad_rules import plus_one

LIMITS = MeasureLimits(warm_up_s=0.25, warm_up_runs=3, min_runs=5)


class Place:
    """One that notes what it is asked for; a kernel is its name, and its first three runs after idling are slow."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.used: list[Any] = []
        self.slow = 3

    @contextmanager
    def place(self) -> Iterator[Place]:
        yield self

    def load(self, library: str) -> Callable[..., Any]:
        def kernel(x: Any, y: Any) -> None:
            self.log.append(f"check {library}")
            y.copyfrom(x.numpy() + np.float32(1))

        kernel.__name__ = library
        return kernel

    def put(self, value: Any) -> Any:
        return tvm.runtime.tensor(value)

    def lists(self, values: Sequence[Any], weights: Sequence[int], weight_bytes: int) -> list[list[Any]]:
        self.log.append(f"lists {list(weights)} {weight_bytes}")
        x, y = (self.put(value) for value in values)
        return [[x, y], [self.put(x.numpy()), y]] if weights else [[x, y]]

    def awaken(self, seconds: float) -> None:
        self.log.append(f"awake {seconds}")

    def timer(self, kernel: Callable[..., Any], turns: Turns) -> Callable[[], float]:
        return lambda: self.seconds(kernel, turns.next())

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def seconds(self, kernel: Callable[..., Any], arguments: Sequence[Any]) -> float:
        self.log.append(f"time {kernel.__name__}")
        self.used.append(arguments[0])
        kernel(*arguments)
        self.log.pop()
        self.slow -= 1
        return 3.0 if self.slow >= 0 else 1.0


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject("plus", tvm.ir.save_json(plus_one()), {}, str(tmp_path / "expected.npz"))


def test_cores_are_awake_before_a_kernel_is_timed(subject: Subject) -> None:
    place = Place()
    trials = Trials(place, LIMITS)
    assert trials.reference(Reference(subject, "untuned")).kind == "measured"
    ran = trials.run(Run(subject, "one", 10.0))
    assert place.log == ["check untuned", "lists [] 0", "check one", "awake 0.25", *["time one"] * 8]
    assert (ran.kind, ran.seconds, ran.runs) == ("measured", 1.0, 5)


def test_the_first_round_of_a_comparison_does_not_count(subject: Subject) -> None:
    place = Place()
    trials = Trials(place, LIMITS)
    trials.reference(Reference(subject, "untuned"))
    found = trials.compare(Compare(subject, ("a", "b", "c"), 4))
    assert place.log[:6] == ["check untuned", "lists [] 0", "check a", "check b", "check c", "awake 0.25"]
    assert sorted(place.log[6:9]) == ["time a", "time b", "time c"]
    assert [(one.kind, one.seconds, one.spread, one.runs) for one in found] == [("measured", 1.0, 0.0, 4)] * 3


def test_each_timed_call_has_the_next_copy_of_the_weights(subject: Subject) -> None:
    place = Place()
    trials = Trials(place, LIMITS)
    trials.reference(Reference(subject, "untuned"))
    ran = trials.run(Run(replace(subject, weights=(0, 1), weight_bytes=1000), "one", 10.0))
    assert ran.kind == "measured"
    assert "lists [0] 1000" in place.log  # the output is none of them
    first, second = place.used[:2]
    assert first is not second
    assert [used is (first, second)[i % 2] for i, used in enumerate(place.used)] == [True] * 8


def test_spinning_lasts_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(probe.time, "perf_counter", lambda: next(now))
    spun: list[int] = []
    made = object.__new__(probe.Probe)
    made._scale = made._sums = None
    made._fma = lambda *_: spun.append(1)
    made.spin(5)
    assert len(spun) == 4
