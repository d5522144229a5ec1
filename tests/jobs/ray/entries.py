"""A tuning whose times are made from the bytes of each library: equal libraries have equal times."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from relaxc.service.process.task import Emit

__all__ = ["RULED", "ruled"]

RULED = "tests.jobs.ray.entries:ruled"


def ruled(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tunes, and leaves in the result how many candidates were built elsewhere at a time."""
    from relaxc.service.jobs.entries import tune_model
    from relaxc.service.tuning.measure import measurer
    from relaxc.service.tuning.measure.outcome import Outcome
    from relaxc.service.tuning.task import Task

    class Ruled(measurer.Measurer):
        """Its seconds are of the library, whatever it took; all else is measured."""

        def measure(
            self, task: Task, points: Sequence[Any], ended: Callable[[Outcome], None] = lambda outcome: None
        ) -> list[Outcome]:
            found = [self._ruled(task, outcome) for outcome in super().measure(task, points)]
            for outcome in found:
                ended(outcome)
            return found

        def compare(self, task: Task, points: Sequence[Any], rounds: int) -> list[Outcome]:
            return [self._ruled(task, outcome) for outcome in super().compare(task, points, rounds)]

        def _ruled(self, task: Task, outcome: Outcome) -> Outcome:
            if outcome.seconds is None:
                return outcome
            kept = self._libraries.find(task, outcome.point)
            assert kept is not None
            number = int(hashlib.sha256(Path(kept[1]).read_bytes()).hexdigest()[:8], 16)
            seconds = 1e-3 * (1 + number / 2**32)
            return replace(outcome, seconds=seconds, spread=0.0, runs=5, loud=False, error=0.0)

    from relaxc.service.tuning import session

    emit({"event": "metric", "far": payload.get("far_builders", 0)})
    session.Measurer = Ruled  # type: ignore[misc]  # as it makes one
    tune_model(payload, workdir, emit)
