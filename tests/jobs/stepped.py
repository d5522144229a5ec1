"""Servers that do one step at a time: nothing in them runs by itself, and a job does what the test tells it next."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from relaxc.service.errors import Cancelled, ServiceError
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import JobRow
from relaxc.service.jobs.job import Claim
from relaxc.service.jobs.queue.running import Running
from relaxc.service.process.runner import RunnerLost
from tests.waiting import PATIENCE_S

__all__ = ["Held", "OpenStepped", "SteppedBackend", "begun", "give_way"]

T = TypeVar("T")


class Held:
    """A job that a server has begun, in the thread that the scheduler made for it."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.thread: threading.Thread | None = None
        self._orders: queue.SimpleQueue[Callable[[], Outcome | None]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._settled = threading.Event()
        self._may_leave = threading.Event()

    def do(self, step: Callable[[Running], T]) -> T:
        """Have the job's own thread do this, and return what came of it."""
        found: list[T] = []
        self._orders.put(lambda: found.append(step(self.running)))
        self._done.get(timeout=PATIENCE_S)
        return found[0]

    def settle(self, outcome: Outcome | None = None) -> None:
        """Have the job end like this, or as cancelled, and its end written down; its thread still is there."""

        def end() -> Outcome:
            if outcome is None:
                raise Cancelled("it was cancelled")
            return outcome

        self._orders.put(end)
        assert self._settled.wait(PATIENCE_S)

    def lose(self) -> None:
        """Have what runs the job be lost, and that written down; its thread has ended."""

        def end() -> Outcome:
            raise RunnerLost("its node is lost")

        self._orders.put(end)
        assert self._settled.wait(PATIENCE_S)
        self.leave()

    def leave(self) -> None:
        """Have its thread end."""
        self._may_leave.set()
        assert self.thread is not None
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()

    def end(self, outcome: Outcome | None = None) -> None:
        """Settle and leave."""
        self.settle(outcome)
        self.leave()

    def release(self) -> None:
        """Let it go, wherever it is."""
        self._may_leave.set()
        self._orders.put(lambda: Outcome())

    def work(self) -> Outcome:
        """What the server calls to have the job done."""
        while True:
            outcome = self._orders.get()()
            if outcome is not None:
                return outcome
            self._done.put(None)

    def settled(self) -> None:
        """What the server calls when the job's end is written down, or was refused."""
        self._settled.set()
        self._may_leave.wait(PATIENCE_S)


class SteppedBackend(Backend):
    """A server whose scheduler, heartbeat and recovery are the test's to call."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.held: dict[Claim, Held] = {}
        super().__init__(*args, **options)

    def _kinds(self, limits: Any, entry: str, entries: Any) -> Any:
        return lambda running: self.held[running.job.claim].work()

    def _start(self, kinds: Any, slots: dict[bool, int], queue_max: int) -> None:
        super()._start(kinds, slots, queue_max)
        run = self._scheduler._run

        def settled(running: Running) -> None:
            run(running)
            self.held[running.job.claim].settled()

        self._scheduler._run = settled

    def _begin(self, job: JobRow, memory_bytes: int) -> Running:
        running = super()._begin(job, memory_bytes)
        self.held[job.claim] = Held(running)
        return running

    def begin(self, *, tune: bool = False) -> Held | None:
        """Begin the job whose turn it is, if there is one."""
        before = set(self.held)
        if not self._scheduler._start_one(tune):
            return None
        (claim,) = self.held.keys() - before
        held = self.held[claim]
        held.thread = self._scheduler._held._jobs[claim][1]
        return held

    def look(self) -> None:
        """End what is to be ended, as the scheduler does from time to time."""
        self._scheduler._end_unwanted()

    def bury_others(self) -> list[str]:
        """Take every other server for dead; return the ids of the jobs that it had."""
        self._keeper._lease_s = -1.0
        return self._keeper.recover()

    def beat(self) -> None:
        """Say that this server lives."""
        self._keeper.beat()

    def close(self) -> None:
        """As a server's, whatever its jobs wait for."""
        for held in self.held.values():
            held.release()
        super().close()


OpenStepped = Callable[[str], SteppedBackend]


def begun(server: SteppedBackend, *, tune: bool = False) -> Held:
    held = server.begin(tune=tune)
    assert held is not None
    return held


def give_way(held: Held) -> None:
    """As for a compile that needs the memory."""
    held.running.cancel(ServiceError("tuning gives way to a compile"), give_back=True)
