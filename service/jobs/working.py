"""A worker: a backend without an API, until it is told to stop."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable
from types import FrameType

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.workers.fleet import Role
from relaxc.service.jobs.workers.slots import slots_of
from relaxc.service.process.sandbox.required import require_sandbox

__all__ = ["LOCAL", "Stopping", "work"]

LOCAL = "local"
"""The setting RELAXC_RUNNER of a worker whose jobs are processes of its own."""


def work(
    *, workers: int | None = None, tune_workers: int | None = None, open_backend: Callable[..., Backend] = Backend
) -> None:
    """Run jobs until SIGTERM or SIGINT. Raise InvalidOption where there is nothing that it would run."""
    slots = slots_of(Role.WORKER, workers, tune_workers)
    if not any(slots.values()):
        raise InvalidOption("a worker without --workers and --tune-workers runs nothing", option="--workers")
    require_sandbox()
    if settings().runner != LOCAL:
        _work_on_ray(slots, open_backend)
        return
    stopping = Stopping()
    with open_backend(workers=slots[False], tune_workers=slots[True], role=Role.WORKER) as backend:
        backend.warm()
        print(f"working as {backend.id}", flush=True)
        drain_s = stopping.wait(backend.hurry)
        backend.stop(drain_s)


def _work_on_ray(slots: dict[bool, int], open_backend: Callable[..., Backend]) -> None:
    from relaxc.service.jobs.on_ray import OnRay

    with OnRay(settings().runner, slots, open_backend) as nodes:
        stopping = Stopping()  # after Ray, which takes signals too
        print(
            f"working as {' '.join(nodes.ids) or 'nobody yet: no node offers what relaxc worker --resources says'}",
            flush=True,
        )
        nodes.stop(stopping.wait(nodes.hurry))


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
