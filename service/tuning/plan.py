"""Which task gets the next trials: the one whose calls may save most time, until nothing more is to be expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from relaxc.service.tuning.search import Search

__all__ = ["AT_ROOFLINE", "ENOUGH_TRIALS", "LEAST_BATCH", "Budget", "Plan", "Progress"]

AT_ROOFLINE = 0.9
"""The part of the roofline from which on a task is done: what is left is less than a machine's noise."""

LEAST_BATCH = 8
ENOUGH_TRIALS = 24
"""Trials without an improvement after which a task is done, if the model hopes for none; twice as many if it does."""
_IMPROVED = 0.01
"""The part of the time by which a best point has to be faster to count as an improvement."""
_HOPED = 0.04
_WORTH = 1e-3
"""The part of the time of all tasks under which what a task may save is not worth its trials."""
_SHARE = 4
"""How many times the average of the trials one task may get."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend: `trials` a task on average, the first of which is the untuned kernel, and `time_s`.

    `exhaustive` gives no task up for what is expected of it: each gets its `trials`, or all of its points. A task gets
    `batch` trials at a time.
    """

    trials: int = 64
    time_s: float | None = None
    exhaustive: bool = False
    batch: int = LEAST_BATCH


@dataclass
class Progress:
    """How far one task is. `limit_s` is its roofline: no kernel takes less; `best_s` is None until one was measured.

    `done` says why there will be no more trials; empty while there may be.
    """

    weight: int
    limit_s: float
    search: Search
    trials: int = 0
    failed: int = 0
    untuned_s: float | None = None
    best_s: float | None = None
    done: str = ""
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    """(trials, seconds since the run began, best seconds) whenever the best changed."""

    @property
    def roofline(self) -> float:
        """The part of the roofline that the best kernel reaches, 0 while there is none; at most 1."""
        return min(1.0, self.limit_s / self.best_s) if self.best_s else 0.0

    def take(self, point_s: float | None, at_s: float) -> None:
        """Count a trial that took `point_s` (None: it failed), `at_s` seconds after the run began."""
        self.trials += 1
        self.failed += point_s is None
        if self.trials == 1:
            self.untuned_s = point_s
        if point_s is not None and (self.best_s is None or point_s < self.best_s):
            self.best_s = point_s
            self.curve.append((self.trials, at_s, point_s))

    def improvement(self, window: int) -> float:
        """Return the part of the best time that the last `window` trials saved."""
        if self.best_s is None:
            return 0.0
        before = [seconds for trials, _, seconds in self.curve if trials <= max(1, self.trials - window)]
        return 1 - self.best_s / (before or [self.curve[0][2]])[-1]

    def gain_s(self) -> float:
        """Return the seconds a run of the model that more trials are expected to save; a rough guess that ranks tasks.

        As Ansor's task scheduler: the trend of the last trials, or optimism that fades with the trials, and never more
        than the roofline leaves.
        """
        if self.best_s is None:
            return 0.0
        hope = max(self.improvement(ENOUGH_TRIALS), 2.0 / (8 + self.trials))
        return self.weight * self.best_s * min(1 - self.roofline, hope)

    def finish(self, *, exhaustive: bool = False) -> None:
        """Set `done` where nothing more is to be expected; an exhaustive run expects nothing, and measures."""
        if self.trials and self.untuned_s is None:
            self.done = "its untuned kernel cannot be measured"
        elif self.search.exhausted:
            self.done = "every point was measured"
        elif exhaustive:
            return
        elif self.roofline >= AT_ROOFLINE:
            self.done = "at the roofline"
        elif self._settled():
            self.done = "nothing more expected"

    def _settled(self) -> bool:
        if self.best_s is None or self.trials < ENOUGH_TRIALS or self.improvement(ENOUGH_TRIALS) >= _IMPROVED:
            return False
        expected = self.search.expected
        hopeless = expected is None or expected > self.best_s * (1 - _HOPED)
        return hopeless or (self.trials >= 2 * ENOUGH_TRIALS and self.improvement(2 * ENOUGH_TRIALS) < _IMPROVED)


class Plan:
    """Shares a budget among tasks. What it does next depends on the answers so far alone, not on the clock."""

    def __init__(self, tasks: Sequence[Progress], budget: Budget) -> None:
        self._tasks = tasks
        self.total = budget.trials * len(tasks)
        self._exhaustive, self._batch = budget.exhaustive, budget.batch
        self._most = budget.trials * (1 if len(tasks) == 1 or budget.exhaustive else _SHARE)

    @property
    def spent(self) -> int:
        """Trials so far, of all tasks."""
        return sum(task.trials for task in self._tasks)

    def next(self) -> tuple[int, int] | None:
        """Return the task that gets the next trials, and how many; None at the end. Untuned kernels come first."""
        left = self.total - self.spent
        open_ = [i for i, task in enumerate(self._tasks) if not task.done]
        if left <= 0 or not open_:
            return None
        for i in open_:
            if self._tasks[i].trials == 0:
                return i, 1
        able = [i for i in open_ if self._tasks[i].trials < self._most and self._worth(i)]
        if not able:
            return None
        chosen = max(able, key=lambda i: (self._tasks[i].gain_s(), -i))
        return chosen, min(self._batch, left, self._most - self._tasks[chosen].trials)

    def _worth(self, index: int) -> bool:
        """Whether the task may save a notable part of the time of all; if not, it is done."""
        task = self._tasks[index]
        if self._exhaustive:
            return True
        whole = sum(one.weight * (one.best_s or 0.0) for one in self._tasks)
        if task.gain_s() < _WORTH * whole:
            task.done = "too little to gain"
        return not task.done
