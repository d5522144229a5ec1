"""A worker: a backend without an API, until it is told to stop."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable
from types import FrameType

from service.config import settings
from service.errors import InvalidOption
from service.jobs.backend import Backend, slots_of
from service.jobs.workers.fleet import Role

__all__ = ["Stopping", "require_sandbox", "work"]


def work(
    *, workers: int | None = None, tune_workers: int | None = None, open_backend: Callable[..., Backend] = Backend
) -> None:
    """Run jobs until SIGTERM or SIGINT. Raise InvalidOption where there is nothing that it would run."""
    slots = slots_of(Role.WORKER, workers, tune_workers)
    if not any(slots.values()):
        raise InvalidOption("a worker without --workers and --tune-workers runs nothing", option="--workers")
    require_sandbox()
    stopping = Stopping()
    with open_backend(workers=slots[False], tune_workers=slots[True], role=Role.WORKER) as backend:
        backend.warm()
        print(f"working as {backend.id}", flush=True)
        drain_s = stopping.wait(backend.hurry)
        backend.stop(drain_s)


class Stopping:
    """SIGTERM and SIGINT of this process from now on."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[float] = queue.SimpleQueue()  # a handler may put into it whatever it interrupts
        self._is_told = False
        self._hurry: Callable[[], None] = lambda: None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def wait(self, hurry: Callable[[], None]) -> float:
        """Return how long running jobs have, once one came; `hurry` is called at the next, and makes that no time."""
        self._hurry = hurry
        return self._told.get()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._is_told:
            self._hurry()
            return
        self._is_told = True
        self._told.put(settings().drain_s if number == signal.SIGTERM else 0.0)


def require_sandbox() -> None:
    """Have no job run without a whole sandbox, unless RELAXC_SANDBOX says what shall be: others may send models."""
    if "sandbox" not in settings().model_fields_set:
        os.environ["RELAXC_SANDBOX"] = "require"  # the workers read it too
        settings.cache_clear()
