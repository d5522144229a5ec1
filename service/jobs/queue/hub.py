"""Events as they come, for any number of listeners: the database is asked once for each job that somebody follows.

What this server writes is told to the hub at once; what others of the same database write is told by PostgreSQL, or
seen by polling.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import events
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import EventRow

__all__ = ["Hub", "Subscription"]

_LOG = logging.getLogger("relaxc.events")
_POLL_S = 0.4
_BATCH = 1000


@dataclass
class _Story:
    """What has happened to a job since somebody follows it: the events numbered over `base`, and who is told."""

    base: int
    events: list[EventRow] = field(default_factory=list)
    listeners: dict[int, Callable[[], None]] = field(default_factory=dict)

    @property
    def known(self) -> int:
        """The number of the last event."""
        return self.base + len(self.events)


class Subscription:
    """One listener's place in a job's story."""

    def __init__(self, hub: Hub, job: str, after: int, on_change: Callable[[], None]) -> None:
        self._hub = hub
        self._job = job
        self._after = after
        self._number = hub._enter(job, after, on_change)

    def take(self) -> tuple[EventRow, ...]:
        """Return the events that have come since the last call, in order."""
        found = self._hub._after(self._job, self._after)
        if found:
            self._after = found[-1].seq
        return found

    @property
    def stopped(self) -> bool:
        """Whether nothing will come any more, as the server stops."""
        return self._hub.stopped

    def close(self) -> None:
        """Listen no more. May be called twice."""
        self._hub._leave(self._job, self._number)


class Hub:
    """A thread that reads the events of the jobs that are followed, and wakes who follows them."""

    def __init__(self, database: Database, poll_s: Callable[[], float | None] = lambda: None) -> None:
        """`poll_s` says how seldom it may poll, None where nobody tells it what others write."""
        self._database = database
        self._asked_poll_s = poll_s
        self._stories: dict[str, _Story] = {}
        self._changed: set[str] = set()
        self._number = 0
        self._condition = threading.Condition()
        self.stopped = False
        self._thread = threading.Thread(target=self._work, name="events", daemon=True)
        self._thread.start()

    def notify(self, job: str) -> None:
        """Wake those who follow the job: it may have new events."""
        with self._condition:
            if job in self._stories:
                self._changed.add(job)
                self._condition.notify()

    def subscribe(self, job: str, after: int, on_change: Callable[[], None]) -> Subscription:
        """Call `on_change`, from a thread of the hub's, whenever `take` may give something, and at the stop.

        What comes after the event `after` is kept in memory: who wants a long story reads its past from the database.
        """
        return Subscription(self, job, after, on_change)

    def close(self) -> None:
        """Stop; every listener is woken a last time."""
        with self._condition:
            self.stopped = True
            self._condition.notify()
        self._thread.join()

    def _enter(self, job: str, after: int, on_change: Callable[[], None]) -> int:
        with self._condition:
            self._number += 1
            story = self._stories.setdefault(job, _Story(after))
            story.listeners[self._number] = on_change
            if after < story.base:
                story.base, story.events = after, []  # read again, from there
            self._changed.add(job)
            self._condition.notify()
            return self._number

    def _leave(self, job: str, number: int) -> None:
        with self._condition:
            story = self._stories.get(job)
            if story is not None:
                story.listeners.pop(number, None)
                if not story.listeners:
                    del self._stories[job]

    def _after(self, job: str, seq: int) -> tuple[EventRow, ...]:
        with self._condition:
            story = self._stories.get(job)
            return tuple(story.events[seq - story.base :]) if story is not None else ()

    def _work(self) -> None:
        polled = 0.0
        while not self.stopped:
            poll_s = self._asked_poll_s() or _POLL_S
            with self._condition:
                if not self._changed:
                    self._condition.wait(poll_s if self._stories else None)
                changed, self._changed = self._changed, set()
                known = {job: story.known for job, story in self._stories.items()}
            try:
                if time.monotonic() - polled >= poll_s and known:
                    polled = time.monotonic()
                    changed |= self._grown(known)
                for job in changed & known.keys():
                    self._read(job, known[job])
            except ServiceError as error:
                _LOG.warning("events: %s", error)
                time.sleep(_POLL_S)
            except Exception:  # noqa: BLE001  # a bug must not end the thread that all who follow a job wait for
                _LOG.exception("events go on")
                time.sleep(_POLL_S)
        with self._condition:
            listeners = [each for story in self._stories.values() for each in story.listeners.values()]
        for listener in listeners:
            listener()

    def _grown(self, known: dict[str, int]) -> set[str]:
        with self._database.read() as connection:
            counts = events.counts(connection, known)
        return {job for job, count in counts.items() if count > known[job]}

    def _read(self, job: str, after: int) -> None:
        while True:
            with self._database.read() as connection:
                found = events.read(connection, job, after, _BATCH)
            with self._condition:
                story = self._stories.get(job)
                if story is None:
                    return
                if story.known == after:  # else somebody left and came again meanwhile
                    story.events.extend(found)
                listeners = list(story.listeners.values())
            for listener in listeners:
                listener()
            after += len(found)
            if len(found) < _BATCH:
                return
