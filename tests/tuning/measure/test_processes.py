"""kill -9 of builder, runner, zygote and tuner: one trial at most is lost, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from relaxc.service.tuning.measure import Measurer, Outcome
from relaxc.service.tuning.task import Task
from tests.processes import name_of
from tests.tuning.measure.conftest import fault
from tests.waiting import PATIENCE_S, until

Make = Callable[..., Measurer]
ROOT = Path(__file__).parents[3]

_TUNER = """
import sys
from relaxc.service.lowering.target import resolve
from relaxc.service.tuning.measure import Measurer
from tests.tuning.measure.bad_rules import RULES, plus_one
from tests.tuning.measure.conftest import BAD, LIMITS, fault, make_task

task = make_task(plus_one(), RULES[0], "faulty")
with Measurer(resolve("auto"), threads=1, builders=2, limits=LIMITS, rules=[BAD]) as measurer:
    measurer.measure(task, [fault("none")])
    print("warm", flush=True)
    measurer.measure(task, [fault("hang"), fault("builder-hang"), fault("builder-hang")])
"""


def below(pid: int, name: str) -> list[psutil.Process]:
    """The processes below one that have a name."""
    return [p for p in psutil.Process(pid).children(recursive=True) if name_of(p) == name]


def while_busy(victim: str, hanging: str, measurer: Measurer, task: Task) -> list[Outcome]:
    """The outcomes of three points, the first of which hangs until `victim` is killed."""
    outcomes: list[Outcome] = []
    assert [o.kind for o in measurer.measure(task, [fault("none")])] == ["measured"]
    pool = measurer._builders if victim == "relaxc-builder" else measurer._runners
    work = threading.Thread(
        target=lambda: outcomes.extend(measurer.measure(task, [fault(hanging), fault("none"), fault("none")]))
    )
    work.start()
    until(lambda: pool.busy == 1 and (victim == "relaxc-builder" or not measurer._builders.busy))
    time.sleep(1)
    if victim == "relaxc-tune":
        below(os.getpid(), victim)[0].kill()
    else:
        seat = next(seat for seat in pool._seats if seat.busy)
        assert seat.worker is not None
        os.kill(seat.worker.pid, signal.SIGKILL)
    work.join(PATIENCE_S)
    assert not work.is_alive()
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "kinds"), [(1, ["measured"] * 2), (2, ["crashed"] * 2)])
def test_a_comparison_is_made_again_or_says_nothing(kills: int, kinds: list[str], measurer: Make, faulty: Task) -> None:
    """Times of a point by itself are none in turns: they must not stand for a comparison that died."""
    made = measurer()
    points = [fault("none")]
    assert [o.kind for o in made.compare(faulty, points, rounds=1)] == ["measured"] * 2
    begun = time.monotonic()
    made.compare(faulty, points, rounds=3000)
    rounds = int(3000 * 2.0 / (time.monotonic() - begun))  # two seconds of this machine: it is killed in their midst
    outcomes: list[Outcome] = []
    work = threading.Thread(target=lambda: outcomes.extend(made.compare(faulty, points, rounds=rounds)))
    work.start()
    killed: set[int] = set()
    while len(killed) < kills:
        until(lambda: made._runners.busy and set(made._runners.pids) - killed)
        time.sleep(0.3)
        (pid,) = set(made._runners.pids) - killed
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    work.join(PATIENCE_S)
    assert [outcome.kind for outcome in outcomes] == kinds
    assert all((outcome.seconds is not None) == (outcome.kind == "measured") for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "hanging"), [("relaxc-builder", "builder-hang"), ("relaxc-runner", "hang"), ("relaxc-tune", "hang")]
)
def test_a_killed_process_costs_the_trial_it_was_at(victim: str, hanging: str, measurer: Make, faulty: Task) -> None:
    made = measurer()
    outcomes = while_busy(victim, hanging, made, faulty)
    assert [outcome.kind for outcome in outcomes] == ["crashed", "measured", "measured"]
    assert [o.kind for o in made.measure(faulty, [fault("none")])] == ["measured"]


@pytest.mark.slow
def test_workers_killed_while_idle_cost_nothing(measurer: Make, faulty: Task) -> None:
    made = measurer()
    made.measure(faulty, [fault("none")])
    for pid in (*made._builders.pids, *made._runners.pids):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    assert [o.kind for o in made.measure(faulty, [fault("none")] * 3)] == ["measured"] * 3


@pytest.mark.slow
def test_nothing_is_left_of_a_killed_tuner(cache: Path) -> None:
    tuner = subprocess.Popen(
        [sys.executable, "-c", _TUNER],
        cwd=ROOT,
        env={**os.environ, "RELAXC_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with tuner:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "warm\n"
        until(lambda: len(below(tuner.pid, "relaxc-builder")) == 2)
        processes = psutil.Process(tuner.pid).children(recursive=True)
        assert {p.name() for p in processes} == {"relaxc-tune", "relaxc-builder", "relaxc-runner"}
        tuner.kill()
        tuner.wait()
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert not alive
    folders = cache / "tuning"
    until(lambda: not [path for folder in folders.iterdir() for path in folder.iterdir() if path.is_dir()])


@pytest.mark.slow
def test_an_exception_in_the_middle_leaves_workers_that_work(measurer: Make, faulty: Task) -> None:
    made = measurer()
    made.measure(faulty, [fault("none")])

    def interrupt() -> None:
        raise KeyboardInterrupt

    made._listener.wait_until_quiet = interrupt  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        made.measure(faulty, [fault("none")] * 4)
    del made._listener.wait_until_quiet
    assert [o.kind for o in made.measure(faulty, [fault("none")] * 3)] == ["measured"] * 3
