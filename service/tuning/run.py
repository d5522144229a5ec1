"""A tuning run over tasks: plan → ask → measure → tell, and a comparison before anything is called a win."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from relaxc.service.tuning.journal import Journal
from relaxc.service.tuning.measure.outcome import Noise, Outcome
from relaxc.service.tuning.plan import Budget, Plan, Progress
from relaxc.service.tuning.search import Search
from relaxc.service.tuning.task import Task
from relaxc.service.tuning.verdict import Verdict, judge

if TYPE_CHECKING:
    from relaxc.schedules.template import Parameters

__all__ = ["Candidate", "Measure", "Start", "TuningRun"]

_ROUNDS = (9, 41)
_ROUNDS_S = 0.3
"""A comparison takes so many rounds as fit, at the untuned kernel's time, within these bounds."""
_FINALISTS = 3
_NOTABLE = 0.02
"""The part by which the best point has to improve for a comparison in the middle of a search."""


class Measure(Protocol):
    """What a run needs of `relaxc.service.tuning.measure.Measurer`."""

    @property
    def noise(self) -> Noise:
        """What the reference kernel said last."""
        ...

    def measure(
        self, task: Task, points: Sequence[Parameters], ended: Callable[[Outcome], None] = ...
    ) -> list[Outcome]:
        """Measure every point; return the outcomes in order. `ended` hears of each as soon as it has come."""
        ...

    def compare(self, task: Task, points: Sequence[Parameters], rounds: int) -> list[Outcome]:
        """Time the points in turns; return the outcomes in order, and last that of the untuned one."""
        ...


@dataclass(frozen=True)
class Start:
    """Where the search of a task begins: `limit_s` is its roofline, `hints` are points that won for similar tasks.

    `standing` is a point on record for this very task and its seconds: what is found has to beat it.
    """

    limit_s: float
    hints: tuple[Mapping[str, int], ...] = ()
    standing: tuple[Mapping[str, int], float] | None = None


@dataclass
class Candidate:
    """A task of the run, and the best that was confirmed for it: None until a comparison was made."""

    task: Task
    start: Start
    progress: Progress
    verdict: Verdict | None = None
    tried: list[dict[str, int]] = field(default_factory=list)
    """Points that lost a comparison."""
    reference_s: float | None = None
    """The untuned kernel in the last comparison: its first trial, alone and after idle cores, is often slower."""


Confirmed = Callable[[Candidate], None]


class TuningRun:
    """Runs once. `confirmed` is called with every candidate whose verdict is new, and once more when its search is
    done; `refused` with one whose point on record did not run, before it is forgotten; `report` with events.

    The same seed and the same measured values give the same run, whether measured now or read from the journal.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        starts: Sequence[Start],
        measurer: Measure,
        journal: Journal,
        *,
        budget: Budget,
        seed: int = 0,
        confirmed: Confirmed = lambda candidate: None,
        refused: Confirmed = lambda candidate: None,
        report: Callable[[dict[str, Any]], None] = lambda event: None,
        spent_s: float = 0.0,
        passed: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spent_s` of the budget's time were spent before; `passed` hears after each round how much it is now."""
        self.candidates = [_candidate(task, start, seed) for task, start in zip(tasks, starts, strict=True)]
        self.plan = Plan([one.progress for one in self.candidates], budget)
        self._budget, self._measurer, self._journal = budget, measurer, journal
        self._confirmed, self._refused, self._report, self._clock = confirmed, refused, report, clock
        self._passed = passed
        self._began = clock() - spent_s
        self.new_trials = 0
        self.measuring_s = 0.0

    def run(self) -> list[Candidate]:
        """Spend the budget; then compare what was not compared yet, so that every measured task has a verdict.

        What the journal has takes no time, so that it is told also where the time is over.
        """
        while (chosen := self.plan.next()) is not None and self._round(*chosen):
            pass
        for index, candidate in enumerate(self.candidates):
            candidate.progress.done = candidate.progress.done or "the budget is spent"
            self._conclude(candidate)
            self._tell(index)
        return self.candidates

    def elapsed(self) -> float:
        """Return the seconds since the run began, and those spent before."""
        return self._clock() - self._began

    def _late(self) -> bool:
        return self._budget.time_s is not None and self.elapsed() >= self._budget.time_s

    def _round(self, index: int, count: int) -> bool:
        """False where the time is over and something was to be measured."""
        candidate = self.candidates[index]
        progress = candidate.progress
        points = progress.search.ask(count)
        if any(self._journal.trial(candidate.task, point) is None for point in points) and self._late():
            return False
        outcomes = self._measured(candidate.task, points)
        for point, outcome in zip(points, outcomes, strict=True):
            progress.search.tell(point, outcome.seconds)
            progress.take(outcome.seconds, self.elapsed())
        progress.finish(exhaustive=self._budget.exhaustive)
        if progress.done:
            self._conclude(candidate)
        elif self._promising(candidate, _NOTABLE):
            self._confirm(candidate)
        self._tell(index)
        return True

    def _measured(self, task: Task, points: Sequence[Parameters]) -> list[Outcome]:
        """Outcomes in order: from the journal where it has them, else measured, and written down as they come."""
        new = [point for point in points if self._journal.trial(task, point) is None]
        if new:
            began = self._clock()
            self._measurer.measure(task, new, lambda outcome: self._journal.add_trial(task, outcome))
            self.measuring_s += self._clock() - began
            self.new_trials += len(new)
            self._passed(self.elapsed())
        found = [self._journal.trial(task, point) for point in points]
        return [outcome for outcome in found if outcome is not None]

    def _promising(self, candidate: Candidate, by: float) -> list[dict[str, int]]:
        """The fastest few that may beat what was confirmed, or the untuned point, if the first does so by that part."""
        untuned, verdict = candidate.progress.untuned_s, candidate.verdict
        if untuned is None:
            return []
        reference = min(untuned, candidate.reference_s or untuned)
        to_beat = reference * (verdict.seconds / verdict.untuned_s if verdict else 1.0)
        known = [*candidate.tried, dict(_standing(candidate)), dict(candidate.task.default)]
        fresh = [(point, s) for point, s in candidate.progress.search.fastest(2 * _FINALISTS) if point not in known]
        if not fresh or fresh[0][1] > to_beat * (1 - by):
            return []
        return [point for point, seconds in fresh[:_FINALISTS] if seconds < to_beat * (1 + _NOTABLE)]

    def _conclude(self, candidate: Candidate) -> None:
        """Leaves the candidate with a verdict, if its untuned kernel runs."""
        untuned = candidate.progress.untuned_s
        if self._promising(candidate, 0.0) or (candidate.start.standing is not None and candidate.verdict is None):
            self._confirm(candidate)
        if candidate.verdict is None and untuned is not None:
            candidate.verdict = Verdict(candidate.task.default, untuned, untuned, untuned, won=False)
        if candidate.verdict is not None:
            self._confirmed(candidate)  # with all trials of the search, which went on after the last win

    def _confirm(self, candidate: Candidate) -> None:
        """Times the best few, the one that stands and the untuned one in turns, and makes the verdict."""
        task, standing = candidate.task, _standing(candidate)
        points = self._promising(candidate, 0.0)
        listed = [*points, *([standing] if dict(standing) != dict(task.default) else [])]
        least, most = _ROUNDS
        rounds = max(least, min(most, int(_ROUNDS_S / (candidate.progress.untuned_s or 1.0))))
        outcomes = self._journal.compared(task, listed, lambda: self._measurer.compare(task, listed, rounds))
        stood, untuned = outcomes[len(points)], outcomes[-1]
        if untuned.seconds is None:
            return
        if stood.seconds is None:  # it does not run here, or gives other numbers: what remains has to beat the untuned
            self._refused(candidate)
            candidate.start, candidate.verdict = replace(candidate.start, standing=None), None
            candidate.tried.append(dict(standing))
            stood = untuned
        verdict = judge(outcomes[: len(points)], stood, untuned)
        candidate.tried += [point for point in points if verdict is None or point != dict(verdict.point)]
        if verdict is not None:
            candidate.reference_s = verdict.untuned_s
            candidate.verdict = _rescaled(candidate, verdict)
            self._confirmed(candidate)

    def _tell(self, index: int) -> None:
        candidate = self.candidates[index]
        progress, task, verdict = candidate.progress, candidate.task, candidate.verdict
        self._report({"event": "progress", "stage": "tune", "done": self.plan.spent, "total": self.plan.total})
        best = verdict.seconds if verdict else progress.best_s
        self._report(
            {
                "event": "metric",
                "task": index,
                "name": task.name,
                "trials": progress.trials,
                "failed": progress.failed,
                "best_s": best,
                "untuned_s": verdict.untuned_s if verdict else progress.untuned_s,
                "gflops": task.flops / best / 1e9 if best else None,
                "roofline": progress.roofline,
                "done": progress.done,
                "eta_s": self._eta_s(),
                "loud": self._measurer.noise.loud,
            }
        )

    def _eta_s(self) -> float | None:
        """Seconds to the end of the budget, at the pace so far; None before the first trial."""
        left: list[float] = []
        if self.new_trials:
            most = sum(one.progress.done == "" for one in self.candidates) * self.plan.total / len(self.candidates)
            left.append(min(most, self.plan.total - self.plan.spent) * self.measuring_s / self.new_trials)
        if self._budget.time_s is not None:
            left.append(self._budget.time_s - self.elapsed())
        return max(0.0, min(left)) if left else None


def _candidate(task: Task, start: Start, seed: int) -> Candidate:
    # A task's search is its own: which other tasks there are does not change it.
    own = (int(task.workload, 16) + seed) % (1 << 31)
    standing = () if start.standing is None else (start.standing[0],)
    search = Search(task.space, task.default, seed=own, hints=(*standing, *start.hints), points=task.points)
    return Candidate(task, start, Progress(task.weight, start.limit_s, search))


def _standing(candidate: Candidate) -> Mapping[str, int]:
    if candidate.verdict is not None:
        return candidate.verdict.point
    return candidate.task.default if candidate.start.standing is None else candidate.start.standing[0]


def _rescaled(candidate: Candidate, verdict: Verdict) -> Verdict:
    """The verdict with times as they would have been when the standing point was timed first.

    The machine may be slower now than it was then, and of two records the one with the smaller time is kept: only
    ratios within one comparison count.
    """
    before = candidate.verdict.seconds if candidate.verdict else None
    if before is None and candidate.start.standing is not None:
        before = candidate.start.standing[1]
    scale = before / verdict.standing_s if before is not None else 1.0
    return Verdict(
        verdict.point, verdict.seconds * scale, verdict.untuned_s * scale, verdict.standing_s * scale, verdict.won
    )
