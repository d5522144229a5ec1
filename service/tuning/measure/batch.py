"""One batch of points on its way: built, then run, each until it has its outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from relaxc.service.tuning.measure.messages import Build, Built, Ran, Run
from relaxc.service.tuning.measure.outcome import MeasureLimits, Outcome
from relaxc.service.tuning.measure.pool import Done, Lost, Seats, collect

if TYPE_CHECKING:
    from relaxc.schedules.template import Parameters

__all__ = ["Batch", "Policy", "outcome_of", "run_alone"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How builders and runners share the machine, and how often a run is tried again.

    With `overlap` both work at a time. A lost run, and one whose numbers are wrong, is tried `lost_attempts` and
    `wrong_attempts` times in all; the second time with a fresh runner, as one before it may have spoilt its memory.
    """

    overlap: bool
    lost_attempts: int = 1
    wrong_attempts: int = 2


@dataclass
class Batch:
    """Points of one task; `run_of` makes the request for a library, `before_runs` is called once before the first.

    `ended` hears of each outcome, with the library, which is its to remove. `check_room` is called where something was
    not built: it raises what ends the batch if that is no fault of the point.
    """

    builders: Seats
    runners: Seats
    limits: MeasureLimits
    run_limit_s: float
    policy: Policy
    run_of: Callable[[str], Run]
    before_runs: Callable[[], object]
    check_room: Callable[[], object]
    ended: Callable[[Outcome, str], None]
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def go(self, points: Sequence[Parameters], builds: Sequence[Build]) -> list[Outcome]:
        """Measure every point; return the outcomes in order. However it is left, no worker stays busy with it."""
        self._points, self._builds = points, builds
        there = [Path(build.out).exists() for build in builds]  # built ahead
        self._to_build = deque(index for index, is_there in enumerate(there) if not is_there)
        self._to_run = deque(index for index, is_there in enumerate(there) if is_there)
        self._attempts = [0] * len(points)
        self._ran = False
        try:
            while len(self.outcomes) < len(points):
                self._feed()
                for pool, done in collect(self.builders, self.runners):
                    (self._built if pool is self.builders else self._run_ended)(done)
        finally:
            self.builders.drop_busy()
            self.runners.drop_busy()
        return [self.outcomes[index] for index in range(len(points))]

    def _feed(self) -> None:
        """Gives every free worker a job that may run now."""
        while self._to_build and self.builders.free:
            index = self._to_build.popleft()
            self.builders.submit(index, self._builds[index], self.limits.build_s)
        if not self.policy.overlap and (self._to_build or self.builders.busy):
            return
        if self._to_run and not self._ran:
            self._ran = True
            self.before_runs()
        while self._to_run and self.runners.free:
            index = self._to_run.popleft()
            self._attempts[index] += 1
            self.runners.submit(index, self.run_of(self._builds[index].out), self.run_limit_s)

    def _built(self, done: Done) -> None:
        index = _index(done)
        answer = done.answer
        if isinstance(answer, Built) and answer.kind == "built":
            self._to_run.append(index)
        elif isinstance(answer, Built):
            if answer.kind == "build-failed":
                self.check_room()
            self._end(index, Outcome(self._points[index], _failure(answer.kind), detail=answer.detail))
        else:
            self.check_room()
            self._end(index, outcome_of(self._points[index], answer, "the builder"))

    def _run_ended(self, done: Done) -> None:
        index = _index(done)
        found = outcome_of(self._points[index], done.answer, "the runner")
        lost = isinstance(done.answer, Lost) or done.answer.kind == "unreachable"
        again = self.policy.lost_attempts if lost else self.policy.wrong_attempts
        if (lost or found.kind == "wrong") and self._attempts[index] < again:
            self.runners.end_idle()
            self._to_run.append(index)
        else:
            self._end(index, found)

    def _end(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome
        self.ended(outcome, self._builds[index].out)


def outcome_of(point: Parameters, answer: Ran | Lost, who: str) -> Outcome:
    """Return the outcome that an answer means."""
    if isinstance(answer, Lost):
        return Outcome(point, answer.kind, detail=f"{who}: {answer.detail}")
    if answer.kind == "unreachable":
        return Outcome(point, "crashed", detail=f"the remote device was lost: {answer.detail}")
    return Outcome(point, answer.kind, answer.seconds, answer.spread, answer.runs, answer.detail, error=answer.error)


def run_alone(pool: Seats, job: Any, limit_s: float) -> Any:
    """Return the answer to one job of a pool that is idle."""
    pool.submit(None, job, limit_s)
    try:
        return collect(pool)[0][1].answer
    finally:
        pool.drop_busy()


def _index(done: Done) -> int:
    assert isinstance(done.ident, int)
    return done.ident


def _failure(kind: Literal["built", "refused", "build-failed"]) -> Literal["refused", "build-failed"]:
    return "refused" if kind == "refused" else "build-failed"
