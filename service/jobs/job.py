"""A job as others see it: its state, which only moves forward, and its events, which can be told again."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from relaxc.service.errors import Cancelled, RelaxcError
from relaxc.service.process.pool import Cancellation
from relaxc.service.request import CompileRequest

if TYPE_CHECKING:
    from relaxc.service.artifact.entry import Entry

__all__ = ["Claim", "Event", "Job", "Origin", "State", "Submitted"]

_MAX_EVENTS = 10_000

AnyJob = TypeVar("AnyJob")

Claim = tuple[str, int]
"""A job's id and an epoch of it, which no two claims share: what a server holds that has begun the job."""


class State(StrEnum):
    """Where a job is; the last three are ends."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Origin(StrEnum):
    """How a request was answered: from the store, by a job of its own, by an equal one that lives, or by the one that
    the same Idempotency-Key made."""

    HIT = "hit"
    MISS = "miss"
    JOINED = "joined"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class Submitted(Generic[AnyJob]):
    """The job that answers a request, in memory or as a row of the database; a hit's has succeeded already."""

    job: AnyJob
    origin: Origin


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's story: `seq` counts from 1, `time` is Unix time in seconds, `data` is the event's JSON."""

    seq: int
    time: float
    data: dict[str, Any]


class Job:
    """One compile, wanted by one or several callers. Its fields may be read from any thread."""

    kind = "compile"

    def __init__(self, request: CompileRequest, key: str, release: Callable[[], None], *, anew: bool = False) -> None:
        """`release` is called once, when the model's files are needed no more; `anew` never looks into the store."""
        self.id = uuid.uuid4().hex
        self.request = request
        self.key = key
        self.anew = anew
        self.state = State.QUEUED
        self.stage: str | None = None
        self.progress: tuple[int, int] | None = None
        self.error: RelaxcError | None = None
        self.artifact: Entry | None = None
        self.created_s = time.time()
        self.started_s: float | None = None
        self.finished_s: float | None = None
        self.events: list[Event] = []
        self.cancellation = Cancellation()
        self.cancel_reason: RelaxcError | None = None
        self.done: Future[Entry] = Future()
        self.done.set_running_or_notify_cancel()  # so that nobody who waits can cancel it for the others
        self._release = release
        self._listeners: list[Callable[[Event], None]] = []
        self._lock = threading.RLock()

    @property
    def ended(self) -> bool:
        """Whether it is at its end."""
        return self.done.done()

    def cancel(self, reason: RelaxcError | None = None) -> None:
        """End the job, with `reason`, for everybody who waits for it; in under 2 s nothing of it runs.

        One that has not started ends at once. No effect on one that has ended.
        """
        with self._lock:
            self.cancel_reason = self.cancel_reason or reason or Cancelled("the compile was cancelled")
            if self.state is State.QUEUED:
                self.fail(self.cancel_reason)
        self.cancellation.cancel()

    def result(self, timeout_s: float | None = None) -> Entry:
        """Wait for the stored artifact. Raise the job's error, or TimeoutError."""
        return self.done.result(timeout_s)

    def wait(self) -> None:
        """Return when the job is at its end, whatever that is."""
        wait([self.done])

    def listen(self, listener: Callable[[Event], None], after: int = 0) -> None:
        """Call `listener` for each event with a number over `after`: past ones now, others as they come."""
        with self._lock:
            for event in self.events:
                if event.seq > after:
                    listener(event)
            self._listeners.append(listener)

    def take(self, data: dict[str, Any]) -> None:
        """Add an event from the job's process."""
        with self._lock:
            if data.get("event") == "stage" and data.get("state") == "start":
                self.stage, self.progress = str(data.get("stage")), None
            elif data.get("event") == "progress":
                done, total = data.get("done"), data.get("total")
                if isinstance(done, int) and isinstance(total, int):
                    self.progress = done, total
            self._tell(data)

    def start(self) -> bool:
        """Note that its process is about to run; return False when it was cancelled before that."""
        with self._lock:
            if self.state is State.QUEUED:
                self.state, self.started_s = State.RUNNING, time.time()
                self._tell({"event": "state", "state": self.state})
            return self.state is State.RUNNING

    def succeed(self, artifact: Entry) -> None:
        """Note that the artifact is in the store."""
        with self._lock:
            self.artifact = artifact
            self._end(State.SUCCEEDED, {"artifact": artifact.digest})
        self.done.set_result(artifact)

    def fail(self, error: RelaxcError) -> None:
        """There will be no artifact."""
        with self._lock:
            self.error = error
            state = State.CANCELLED if isinstance(error, Cancelled) else State.FAILED
            self._end(state, {"error": error.to_dict()})
        self.done.set_exception(error)

    def _end(self, state: State, facts: dict[str, Any]) -> None:
        self.state, self.finished_s = state, time.time()
        self._tell({"event": "state", "state": state, **facts})
        self._release()

    def _tell(self, data: dict[str, Any]) -> None:
        if len(self.events) >= _MAX_EVENTS and data.get("event") != "state":
            return
        event = Event(len(self.events) + 1, time.time(), data)
        self.events.append(event)
        for listener in self._listeners:
            listener(event)
