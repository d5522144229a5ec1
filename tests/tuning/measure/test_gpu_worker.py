"""A GPU's runner, with a stand-in for the device: it answers, or ends with what a kernel broke."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import tvm

from relaxc.service.tuning.measure import GPU_LIMITS, Measurer
from relaxc.service.tuning.measure.gpu_worker import Alone, serve
from relaxc.service.tuning.measure.messages import Compare, Heard, Listen, Reference, Run, Subject
from relaxc.service.tuning.task import Task
from tests.tuning.measure.bad_rules import plus_one
from tests.tuning.measure.conftest import fault

STAND_IN = "tests.tuning.measure.stand_in"
LIMITS = replace(GPU_LIMITS, measure_s=0.01, max_runs=6)


class Runner:
    """A runner in a process of its own, and what it wrote when it ended."""

    def __init__(self, folder: Path, kernel_s: float) -> None:
        self.log, self.lock = folder / "log", folder / "gpu.lock"
        self.connection, other = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(other, kernel_s)
        other.close()

    def _become(self, other: Connection, kernel_s: float) -> None:
        try:
            self.connection.close()
            sys.stderr = self.log.open("w")
            limits = asdict(replace(LIMITS, kernel_s=kernel_s))
            serve(other, {"limits": limits, "device": STAND_IN, "lock": str(self.lock)})
        finally:
            os._exit(0)

    def asked(self, request: Any) -> Any:
        self.connection.send(request)
        return self.connection.recv()

    def ended(self) -> int:
        self.connection.close()
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Callable[..., Runner]]:
    made: list[Runner] = []

    def make(kernel_s: float = 60.0) -> Runner:
        made.append(Runner(tmp_path, kernel_s))
        return made[-1]

    yield make
    for one in made:
        if one.pid:
            one.ended()


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject("plus", tvm.ir.save_json(plus_one(64)), {}, str(tmp_path / "expected.npz"))


def test_candidates_are_checked_and_timed_and_compared(runner: Callable[..., Runner], subject: Subject) -> None:
    made = runner()
    assert made.asked(Reference(subject, "good")).kind == "measured"
    ran = made.asked(Run(subject, "good", 10.0))
    assert (ran.kind, ran.seconds > 0) == ("measured", True) and ran.runs >= LIMITS.min_runs
    wrong = made.asked(Run(subject, "wrong", 10.0))
    assert (wrong.kind, wrong.seconds) == ("wrong", None) and "output" not in wrong.detail.partition(":")[0]
    both = made.asked(Compare(subject, ("good", "wrong", "other"), 5))
    assert [(one.kind, one.runs) for one in both] == [("measured", 5), ("wrong", 0), ("measured", 5)]
    assert made.asked(Listen()) == Heard(1e-3, 0.0)
    assert made.ended() == 0


def test_a_fault_ends_the_process_without_an_answer(runner: Callable[..., Runner], subject: Subject) -> None:
    """Its context is broken: what ran next in it would fail too."""
    made = runner()
    made.asked(Reference(subject, "good"))
    with pytest.raises(EOFError):
        made.asked(Run(subject, "fault", 10.0))
    assert made.ended() == 70
    assert made.log.read_text().splitlines()[-1] == "RuntimeError: CUDA error: an illegal memory access was encountered"


def test_a_kernel_that_hangs_is_given_up_with_its_process(runner: Callable[..., Runner], subject: Subject) -> None:
    made = runner(kernel_s=0.2)
    made.asked(Reference(subject, "good"))
    with pytest.raises(EOFError):
        made.asked(Run(subject, "hang", 10.0))
    assert made.ended() == 1
    assert "Timeout" in made.log.read_text()


def test_one_process_at_a_time_has_the_device(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "gpu.lock"
    alone = Alone(str(path), 60.0)
    other = os.open(path, os.O_RDWR)
    with alone(), pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    with Alone("/proc/no/such/folder", 60.0)():  # nobody to wait for
        pass


@pytest.mark.slow
def test_what_breaks_costs_its_trial_and_a_process(measurer: Callable[..., Measurer], faulty: Task) -> None:
    """Real builders, zygote and runner; kernels for this CPU on the stand-in."""
    made = measurer(limits=replace(LIMITS, kernel_s=2.0), device=STAND_IN)
    made.build_ahead([(faulty, faulty.default)])
    points = [fault(name) for name in ("none", "segfault", "hang", "wrong", "mismatch", "none")]
    kinds = [outcome.kind for outcome in made.measure(faulty, points)]
    assert kinds == ["measured", "crashed", "crashed", "wrong", "crashed", "measured"]
    assert [outcome.kind for outcome in made.compare(faulty, [fault("none")], rounds=3)] == ["measured"] * 2
