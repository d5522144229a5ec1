"""A run shares its trials by what they may save, stops where nothing is left, and resumes where it was killed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.errors import StoreUnwritable
from relaxc.service.tuning.journal import Journal
from relaxc.service.tuning.measure.outcome import Outcome
from relaxc.service.tuning.plan import Budget
from relaxc.service.tuning.run import Candidate, Start, TuningRun
from relaxc.service.tuning.task import Task
from relaxc.service.tuning.verdict import judge
from tests.tuning.synthetic import DEFAULT, FakeMeasurer, seconds_of, task


def run(
    folder: Path, tasks: list[Task], measurer: FakeMeasurer, *, resume: bool = False, **options: Any
) -> list[Candidate]:
    starts = options.pop("starts", [Start(limit_s=1e-4)] * len(tasks))
    options.setdefault("budget", Budget(64))
    with Journal(folder, resume=resume) as journal:
        return TuningRun(tasks, starts, measurer, journal, **options).run()


def test_a_run_finds_a_faster_point_and_confirms_it(tmp_path: Path) -> None:
    confirmed: list[float] = []
    (done,) = run(tmp_path, [task()], FakeMeasurer(), confirmed=lambda one: confirmed.append(one.verdict.seconds))
    assert done.verdict is not None
    assert done.verdict.won
    assert done.verdict.untuned_s / done.verdict.seconds > 1.25
    assert done.progress.trials <= 64
    assert confirmed == sorted(confirmed, reverse=True)
    assert confirmed


def test_a_task_at_its_roofline_is_not_searched(tmp_path: Path) -> None:
    measurer = FakeMeasurer()
    (done,) = run(tmp_path, [task()], measurer, starts=[Start(limit_s=0.95 * seconds_of(DEFAULT))])
    assert (done.progress.done, len(measurer.measured)) == ("at the roofline", 1)
    assert done.verdict is not None
    assert (done.verdict.point, done.verdict.won) == (DEFAULT, False)


def test_a_search_stops_when_it_reaches_the_roofline(tmp_path: Path) -> None:
    (done,) = run(tmp_path, [task()], FakeMeasurer(), starts=[Start(limit_s=0.8 * seconds_of(DEFAULT))])
    assert done.progress.done == "at the roofline"
    assert done.progress.trials < 64


def test_the_task_that_may_save_most_gets_most_trials(tmp_path: Path) -> None:
    tasks = [task("light"), task("heavy", weight=20), task("limited", weight=20)]
    near = Start(limit_s=0.88 * seconds_of(DEFAULT))
    starts = [Start(limit_s=1e-4), Start(limit_s=1e-4), near]
    light, heavy, limited = run(tmp_path, tasks, FakeMeasurer(), starts=starts, budget=Budget(20))
    assert heavy.progress.trials > 2 * light.progress.trials
    assert limited.progress.trials < heavy.progress.trials


def test_a_flat_task_is_given_up_and_its_default_kept(tmp_path: Path) -> None:
    (done,) = run(tmp_path, [task()], FakeMeasurer({"task": lambda point: 1e-3}), budget=Budget(200))
    assert done.progress.done == "nothing more expected"
    assert done.progress.trials < 60
    assert done.verdict is not None
    assert (done.verdict.point, done.verdict.won) == (DEFAULT, False)


def test_an_exhaustive_run_gives_nothing_up(tmp_path: Path) -> None:
    """Neither at the roofline nor where the model hopes for nothing; the end is that of the space, or of the trials."""
    one_each = {name: (value,) for name, value in DEFAULT.items()}
    space = {**one_each, "rows": tuple(range(1, 15)), "vectors": (1, 2, 3, 4)}
    flat, near = FakeMeasurer({"task": lambda point: 1e-3}), [Start(limit_s=0.95e-3)]
    for trials, done in ((60, "every point was measured"), (50, "the budget is spent")):
        budget = Budget(trials, exhaustive=True)
        (one,) = run(tmp_path / str(trials), [task(space=space)], flat, starts=near, budget=budget)
        assert (one.progress.done, one.progress.trials) == (done, min(trials, 14 * 4))
    tasks = [task("light"), task("heavy", weight=100)]
    for one in run(tmp_path / "two", tasks, FakeMeasurer(), budget=Budget(50, exhaustive=True)):
        assert one.progress.trials == 50


def test_a_kernel_that_does_not_run_untuned_is_left_alone(tmp_path: Path) -> None:
    (done,) = run(tmp_path, [task()], FakeMeasurer({"task": lambda point: None}))
    assert done.progress.done == "its untuned kernel cannot be measured"
    assert done.verdict is None


def test_time_ends_a_run(tmp_path: Path) -> None:
    now = iter(range(1000))
    (done,) = run(tmp_path, [task()], FakeMeasurer(), budget=Budget(1000, time_s=20.0), clock=lambda: float(next(now)))
    assert done.progress.done == "the budget is spent"
    assert done.verdict is not None


def test_what_was_measured_takes_no_time_when_it_is_told_again(tmp_path: Path) -> None:
    """A run that is resumed when its time is over ends with everything that was measured, and measures nothing."""
    whole, again = FakeMeasurer(), FakeMeasurer()
    spent: list[float] = []
    now = iter(range(1000))
    options: dict[str, Any] = {"budget": Budget(1000, time_s=20.0), "clock": lambda: float(next(now))}
    (want,) = run(tmp_path, [task()], whole, passed=spent.append, **options)
    (got,) = run(tmp_path, [task()], again, resume=True, spent_s=20.0, **options)
    assert 0 < spent[-1] == max(spent)
    assert again.measured == []
    assert (got.progress.trials, got.verdict) == (want.progress.trials, want.verdict)


def test_the_time_of_earlier_runs_counts(tmp_path: Path) -> None:
    now = iter(range(1000))
    options: dict[str, Any] = {"budget": Budget(1000, time_s=20.0), "clock": lambda: float(next(now))}
    measurers = [FakeMeasurer(), FakeMeasurer()]
    for spent_s, measurer in zip((0.0, 15.0), measurers, strict=True):
        run(tmp_path / str(spent_s), [task()], measurer, spent_s=spent_s, **options)
    assert 0 < len(measurers[1].measured) < len(measurers[0].measured)


def test_equal_seeds_and_values_give_equal_runs(tmp_path: Path) -> None:
    first, second = FakeMeasurer(), FakeMeasurer()
    tasks = [task("a"), task("b", weight=3)]
    for name, measurer in (("1", first), ("2", second)):
        run(tmp_path / name, tasks, measurer, seed=7, budget=Budget(32))
    assert first.measured == second.measured


class Killed(BaseException):
    """Stands for a kill in the middle of a batch."""


@pytest.mark.parametrize("after", [1, 6, 30])
def test_a_killed_run_resumes_without_measuring_again(tmp_path: Path, after: int) -> None:
    whole = FakeMeasurer()
    tasks = [task("a"), task("b", weight=3)]
    want = run(tmp_path / "whole", tasks, whole, budget=Budget(24))
    killed, rest = FakeMeasurer(), FakeMeasurer()
    _killed_after(killed, after)
    with pytest.raises(Killed):
        run(tmp_path / "killed", tasks, killed, budget=Budget(24))
    got = run(tmp_path / "killed", tasks, rest, resume=True, budget=Budget(24))
    assert killed.measured + rest.measured == whole.measured
    assert [one.verdict for one in got] == [one.verdict for one in want]


def _killed_after(measurer: FakeMeasurer, trials: int) -> None:
    """The process dies after so many trials: what was told is kept, what was in flight is not."""
    count = 0
    measure = measurer.measure

    def limited(task: Task, points: Any, ended: Callable[[Outcome], None]) -> list[Outcome]:
        nonlocal count
        for point in points:
            if count == trials:
                raise Killed
            measure(task, [point], ended)
            count += 1
        return []

    measurer.measure = limited  # type: ignore[method-assign]


def test_a_torn_line_is_cut_off_and_measured_again(tmp_path: Path) -> None:
    run(tmp_path, [task()], FakeMeasurer(), budget=Budget(8))
    path = tmp_path / "0.trials"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:17])
    again = FakeMeasurer()
    run(tmp_path, [task()], again, resume=True, budget=Budget(8))
    assert len(again.measured) == 3
    assert path.read_bytes().endswith(b"\n")


def test_a_full_disk_loses_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path, resume=False) as journal:
        journal.note("first", 1)

        def full(file: int, data: bytes, offset: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            with pytest.raises(StoreUnwritable, match="No space left"):
                journal.note("second", 2)
        journal.note("third", 3)
    with Journal(tmp_path, resume=True) as again:
        assert (again.noted("first"), again.noted("second"), again.noted("third")) == (1, None, 3)


def test_two_runs_at_once_write_files_of_their_own(tmp_path: Path) -> None:
    with Journal(tmp_path, resume=True) as one, Journal(tmp_path, resume=True) as other:
        one.note("one", 1)
        other.note("other", 2)
    with Journal(tmp_path, resume=True) as both:
        assert (both.noted("one"), both.noted("other")) == (1, 2)


def test_a_point_on_record_stays_unless_it_is_beaten(tmp_path: Path) -> None:
    def flat(point: Mapping[str, int]) -> float:
        return 1e-3 if point["rows"] == 10 else 2e-3

    standing = ({**DEFAULT, "rows": 10}, 0.5e-3)  # of a day when the machine was twice as fast
    (kept,) = run(
        tmp_path, [task()], FakeMeasurer({"task": flat}), starts=[Start(1e-5, standing=standing)], budget=Budget(16)
    )
    assert kept.verdict is not None
    assert (kept.verdict.point, kept.verdict.won) == (standing[0], False)
    assert kept.verdict.seconds == pytest.approx(0.5e-3)
    assert kept.verdict.untuned_s == pytest.approx(1e-3)


def test_a_point_on_record_that_does_not_run_is_struck_and_does_not_block_the_search(tmp_path: Path) -> None:
    standing = ({**DEFAULT, "rows": 10}, 0.5e-3)

    def broken(point: Mapping[str, int]) -> float | None:
        return None if point == standing[0] else seconds_of(point)

    refused: list[tuple[Any, Any]] = []
    (done,) = run(
        tmp_path,
        [task()],
        FakeMeasurer({"task": broken}),
        starts=[Start(1e-5, standing=standing)],
        refused=lambda one: refused.append((one.start.standing, one.verdict)),
    )
    assert refused == [(standing, None)]
    assert done.verdict is not None
    assert done.verdict.won
    assert done.verdict.seconds == pytest.approx(seconds_of(done.verdict.point))


def test_a_comparison_that_nothing_survived_decides_nothing_and_is_not_noted(tmp_path: Path) -> None:
    measurer = FakeMeasurer()
    compare, failures = measurer.compare, 2

    def failing(task: Task, points: Sequence[Any], rounds: int) -> list[Outcome]:
        nonlocal failures
        failures -= 1
        found = compare(task, points, rounds)
        return found if failures < 0 else [replace(one, kind="crashed", seconds=None) for one in found]

    measurer.compare = failing  # type: ignore[method-assign]
    (done,) = run(tmp_path, [task()], measurer)
    assert failures < 0
    assert done.verdict is not None
    assert done.verdict.won
    assert '"crashed"' not in (tmp_path / "0.trials").read_text()


def test_what_is_confirmed_last_tells_of_the_whole_search(tmp_path: Path) -> None:
    trials: list[int] = []
    (done,) = run(tmp_path, [task()], FakeMeasurer(), confirmed=lambda one: trials.append(one.progress.trials))
    assert trials[-1] == done.progress.trials


def test_a_run_that_does_not_resume_forgets_all_that_others_left(tmp_path: Path) -> None:
    with Journal(tmp_path, resume=True) as one, Journal(tmp_path, resume=True) as other:
        one.note("one", 1)
        other.note("other", 2)
    with Journal(tmp_path, resume=True) as lives:
        lives.note("lives", 3)
        with Journal(tmp_path, resume=False):
            pass
    with Journal(tmp_path, resume=True) as again:
        assert (again.noted("other"), again.noted("lives")) == (None, 3)


def outcome(rows: int, seconds: float | None, error: float = 0.005) -> Outcome:
    return Outcome({"rows": rows}, "measured" if seconds else "wrong", seconds, spread=0.1, runs=16, error=error)


def test_a_winner_beats_the_untuned_point_by_more_than_noise() -> None:
    untuned = outcome(1, 1.0)
    assert judge([outcome(2, 0.97), outcome(3, 0.95)], untuned, untuned).point == {"rows": 3}  # type: ignore[union-attr]
    loud = judge([outcome(2, 0.97, error=0.03)], outcome(1, 1.0, error=0.03), outcome(1, 1.0, error=0.03))
    assert loud is not None
    assert (loud.point, loud.won) == ({"rows": 1}, False)


def test_wrong_numbers_never_win_and_without_the_untuned_point_nothing_does() -> None:
    verdict = judge([outcome(2, None)], outcome(1, 1.0), outcome(1, 1.0))
    assert verdict is not None
    assert verdict.point == {"rows": 1}
    assert judge([outcome(2, 0.5)], outcome(1, None), outcome(1, None)) is None


def test_what_stood_goes_when_the_untuned_point_is_faster() -> None:
    """Noise let a point win that is slower: 0.98 x of the untuned kernel was kept as a record."""
    stood, untuned = outcome(2, 1.02), outcome(1, 1.0)
    verdict = judge([outcome(3, 1.01)], stood, untuned)
    assert verdict is not None
    assert verdict.point == untuned.point and verdict.seconds == 1.0 and not verdict.won
