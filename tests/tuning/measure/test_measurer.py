"""Real builders and runners: every point gets its outcome, and only the one at fault is lost."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from relaxc.service.errors import InvalidOption
from relaxc.service.lowering.target import resolve
from relaxc.service.tuning.measure import Measurer
from relaxc.service.tuning.task import Task
from tests.tuning.measure.conftest import LIMITS, fault

Make = Callable[..., Measurer]


def test_good_points_are_measured_in_order(measurer: Make, matmul: Task) -> None:
    rng = random.Random(1)
    points = [dict(point) for point in rng.sample(matmul.points, 5)]
    made = measurer()
    outcomes = made.measure(matmul, points)
    assert [outcome.point for outcome in outcomes] == points
    for outcome in outcomes:
        assert (outcome.kind, outcome.detail) == ("measured", "")
        assert outcome.seconds is not None and 0 < outcome.seconds < 1
        assert outcome.runs >= LIMITS.min_runs and outcome.spread >= 0
    assert made.noise.seconds > 0


@pytest.mark.slow
def test_each_fault_has_its_kind_and_costs_one_trial(measurer: Make, faulty: Task) -> None:
    kinds = {
        "wrong": "wrong",
        "segfault": "crashed",
        "exit": "crashed",
        "memory": "crashed",
        "mismatch": "crashed",
        "declined": "refused",
        "no-such-point": "refused",
        "raises": "build-failed",
        "builder-segfault": "crashed",
    }
    points = [point for name in kinds for point in (fault(name), fault("none"))]
    outcomes = measurer().measure(faulty, points)
    assert {name: outcome.kind for name, outcome in zip(kinds, outcomes[::2], strict=True)} == kinds
    assert [outcome.kind for outcome in outcomes[1::2]] == ["measured"] * len(kinds)
    details = dict(zip(kinds, (outcome.detail for outcome in outcomes[::2]), strict=True))
    assert "SIGSEGV" in details["segfault"] and details["segfault"].startswith("the runner")
    assert "SIGSEGV" in details["builder-segfault"] and details["builder-segfault"].startswith("the builder")
    assert "exit code 3" in details["exit"]
    assert "a bug of the rule" in details["raises"]
    assert "scaled error" in details["wrong"]
    assert details["declined"] == "it has the fault to decline"


@pytest.mark.slow
def test_what_hangs_is_ended(measurer: Make, faulty: Task) -> None:
    made = measurer()
    assert [o.kind for o in made.measure(faulty, [fault("none")])] == ["measured"]  # the workers are warm
    made._limits = replace(made._limits, build_s=5, run_s=5)
    points = [fault(name) for name in ("hang", "none", "builder-hang", "none")]
    outcomes = made.measure(faulty, points)
    assert [outcome.kind for outcome in outcomes] == ["hung", "measured", "hung", "measured"]
    assert outcomes[0].detail == "the runner: it was not done after 5 s"


@pytest.mark.slow
def test_a_default_that_fails_makes_every_point_fail(measurer: Make, faulty: Task) -> None:
    broken = replace(faulty, default=fault("segfault"))
    outcomes = measurer().measure(broken, [fault("none"), fault("wrong")])
    assert [outcome.kind for outcome in outcomes] == ["crashed", "crashed"]
    assert outcomes[1].point == fault("wrong")
    assert outcomes[0].detail.startswith("the untuned kernel")


@pytest.mark.slow
def test_a_rule_that_is_not_there_is_refused(measurer: Make, matmul: Task) -> None:
    made = measurer()
    (outcome,) = made.measure(replace(matmul, version=matmul.version + 1), [matmul.default])
    assert outcome.kind == "refused"
    assert f"no rule {matmul.rule} of version {matmul.version + 1}" in outcome.detail


@pytest.mark.slow
def test_compare_takes_turns_and_ends_with_the_default(measurer: Make, faulty: Task) -> None:
    made = measurer()
    outcomes = made.compare(faulty, [fault("none"), fault("wrong"), fault("segfault")], rounds=7)
    assert [outcome.kind for outcome in outcomes] == ["measured", "wrong", "crashed", "measured"]
    assert outcomes[0].runs == outcomes[-1].runs == 7
    assert outcomes[-1].point == faulty.default
    with pytest.raises(InvalidOption):
        made.compare(faulty, [], rounds=0)


@pytest.mark.slow
def test_kernels_run_with_all_cores_while_nothing_is_built(measurer: Make, matmul: Task) -> None:
    made = measurer(threads=len(os.sched_getaffinity(0)))
    assert not made._policy.overlap
    outcomes = made.measure(matmul, [matmul.default] * 3)
    assert [outcome.kind for outcome in outcomes] == ["measured"] * 3


@pytest.mark.parametrize("counts", [{"threads": 0, "builders": 1}, {"threads": 1, "builders": 0}])
def test_counts_are_checked(counts: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="at least 1"):
        Measurer(resolve("auto"), **counts)


def test_more_threads_than_cores_are_not_timed() -> None:
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(InvalidOption, match=f"on {cores} cores") as refused:
        Measurer(resolve("auto"), threads=cores + 1, builders=1)
    assert refused.value.remedy == f"At most --threads {cores}."
