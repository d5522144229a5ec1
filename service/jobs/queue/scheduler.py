"""Starts jobs when it is their turn, on this server's share of slots and memory, and ends those that are to end.

Several servers of one database each have a scheduler; a lock in the database lets one of them choose at a time. What it
holds is known by its claim, so that a thread that ends late takes away nothing but its own.
Compiles, benches and verifications have `workers` slots. Tuning has slots of its own, and gives way: a job that waits
only for memory that tuning holds has the youngest tuning queued again, and no more of them than it needs.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from relaxc.service.errors import Cancelled, ServiceError
from relaxc.service.jobs.database import claims, jobs, transitions
from relaxc.service.jobs.database.claims import Candidate, Lane
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobKind, JobRow
from relaxc.service.jobs.job import Claim
from relaxc.service.jobs.queue.budget import Budget
from relaxc.service.jobs.queue.held import Held
from relaxc.service.jobs.queue.running import Running

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["CLAIM_LOCK", "Scheduler", "anything"]

CLAIM_LOCK = 3
"""The name of the lock that a server holds while it chooses its next job."""

_LOG = logging.getLogger("relaxc.scheduler")
_POLL_S = 0.5
_FLUSH_S = 0.1
"""Between two writes of what running jobs tell: a listener hears of it within twice that."""

_NO_THREAD_S = 5.0
_NO_ROOM_S = 2.0
_STOPPING = "the service is shutting down"


Accepts = Callable[["Connection"], Mapping[Lane, Collection[str]]]
"""The keys of what jobs that wait in each lane need, as far as this machine has it."""


def anything(connection: Connection) -> dict[Lane, set[str]]:
    """Return the needs of all jobs that wait."""
    waiting = jobs.waiting_needs(connection)
    return {lane: {key for key, kind in waiting if (kind is JobKind.TUNE) is lane} for lane in (False, True)}


class Scheduler:
    """A thread that starts a thread for each job; `run` does the job and settles how it ended."""

    def __init__(
        self,
        database: Database,
        instance: str,
        slots: Mapping[Lane, int],
        budget: Budget,
        begin: Callable[[JobRow, int], Running],
        run: Callable[[Running], None],
        short: Callable[[], str] = lambda: "",
        accepts: Accepts = anything,
        tunes_alone: bool = False,
        poll_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Nothing is started while `short` gives a reason, and nothing but what this machine `accepts`.

        `poll_s` says how seldom it may look at what others have changed, None where nobody tells it.
        Where it `tunes_alone`, nothing else runs beside a tuning, whose times it would change.
        """
        self._database = database
        self._instance = instance
        self._slots = slots
        self._held = Held(budget)
        self._begin = begin
        self._run = run
        self._short = short
        self._accepts = accepts
        self._tunes_alone = tunes_alone
        self._asked_poll_s = poll_s
        self._tuned_last = False
        self._condition = threading.Condition()
        self._woken = True
        self._stopped = False
        self._hurried: queue.SimpleQueue[None] = queue.SimpleQueue()  # a signal's handler puts into it
        self._polled = 0.0
        self._making_way = False
        self._pausing_until = 0.0
        self._thread = threading.Thread(target=self._work, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin to start jobs."""
        self._thread.start()

    def wake(self) -> None:
        """Something has changed: a job was put in, or is to be cancelled."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def find(self, id: str) -> Running | None:
        """Return the job, where it runs here."""
        return self._held.find(id)

    def stop(self, drain_s: float = 0.0) -> None:
        """Start nothing more, give running jobs `drain_s` seconds, and end the rest, to be queued again."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()
        deadline = time.monotonic() + drain_s
        while self._flush() and time.monotonic() < deadline and not self._is_hurried(_FLUSH_S):
            pass
        for running in self._held.by_key().values():
            running.cancel(ServiceError(_STOPPING), give_back=True)

    def hurry(self) -> None:
        """Give running jobs no more time in a `stop` that is under way."""
        self._hurried.put(None)

    def _is_hurried(self, wait_s: float) -> bool:
        """Whether `hurry` was called, at the latest in `wait_s`."""
        try:
            self._hurried.get(timeout=wait_s)
        except queue.Empty:
            return False
        return True

    def join(self) -> None:
        """After `stop`: returns when no job is left."""
        for thread in self._held.threads():
            thread.join()

    def _flush(self) -> bool:
        held = self._held.by_key().values()
        for running in held:
            running.flush()
        return bool(held)

    def _work(self) -> None:
        while True:
            poll_s = self._asked_poll_s() or _POLL_S
            with self._condition:
                if not self._woken and not self._stopped:
                    self._condition.wait(_FLUSH_S if self._held.by_key() else poll_s)
                if self._stopped:
                    return
                woken, self._woken = self._woken, False
            try:
                self._flush()
                if woken or time.monotonic() - self._polled >= poll_s:
                    self._polled = time.monotonic()
                    self._end_unwanted()
                    self._start_waiting()
            except ServiceError as error:
                _LOG.warning("%s", error)
                time.sleep(_POLL_S)
            except Exception:  # noqa: BLE001  # a bug must not end the thread that all jobs wait for
                _LOG.exception("the scheduler goes on")
                time.sleep(_POLL_S)

    def _end_unwanted(self) -> None:
        """Ends what is to be cancelled, and what others have taken as this server did not say that it lives."""
        held = self._held.by_key()
        with self._database.read() as connection:
            mine = jobs.running_on(connection, self._instance)
        for key, running in held.items():
            if mine.get(key):
                running.cancel(Cancelled("the job was cancelled"))
            elif key not in mine or running.lost:
                running.give_up()
        for claim in mine.keys() - held.keys():
            # Started in the database, and then not here: there was no thread to be had, or a bug.
            with self._database.begin() as connection:
                job = transitions.recover(connection, claim, {self._instance: 0.0})
            if job is not None:
                _LOG.error("job %s was run by nobody; it is now %s", job.id, job.state)

    def _start_waiting(self) -> None:
        if time.monotonic() < self._pausing_until:
            return
        free = [lane for lane in self._slots if self._held.count(lane) < self._slots[lane]]
        if not free:
            return
        with self._database.read() as connection:
            accepted = self._accepts(connection)
        if not any(accepted[lane] for lane in free):
            return
        if why := self._short():
            _LOG.warning("no job is started: %s", why)
            self._pausing_until = time.monotonic() + _NO_ROOM_S
            return
        self._making_way = False
        if self._tunes_alone:
            self._start_alone(accepted)
            return
        for lane in (False, True):
            if lane and self._making_way:
                return
            self._start_all(lane, accepted)

    def _start_all(self, lane: Lane, accepted: Mapping[Lane, Collection[str]]) -> bool:
        """Start what there are slots for; return whether anything was."""
        before = self._held.count(lane)
        while accepted[lane] and self._held.count(lane) < self._slots[lane] and self._start_one(lane, accepted[lane]):
            pass
        return self._held.count(lane) > before

    def _start_alone(self, accepted: Mapping[Lane, Collection[str]]) -> None:
        """Start a tuning, or what is none, in turns where both wait: for its turn a tuning has the others end."""
        if self._held.count(True):
            return
        others = self._held.count(False)
        tuning_waits = self._slots[True] > 0 and self._waits(True, accepted[True])
        if tuning_waits and not self._tuned_last:
            if others:
                return
            if self._start_one(True, accepted[True]):
                self._tuned_last = True
                return
        if self._start_all(False, accepted):
            self._tuned_last = False
        elif tuning_waits and not others:
            self._tuned_last = self._start_one(True, accepted[True])

    def _waits(self, lane: Lane, accepts: Collection[str]) -> bool:
        """Whether a job could be claimed: one of an owner who is disabled waits too, and holds up nobody."""
        if not accepts:
            return False
        with self._database.read() as connection:
            return claims.waits(connection, lane, without=self._held.ids(), accepts=accepts)

    def _start_one(self, lane: Lane, accepts: Collection[str] = ("",)) -> bool:
        with self._database.begin() as connection:
            self._database.lock(connection, CLAIM_LOCK)
            claimed = claims.claim(
                connection,
                self._instance,
                lane,
                lambda job: self._fits(job, lane),
                without=self._held.ids(),
                accepts=accepts,
            )
        if claimed is None:
            return False
        job, memory_bytes = claimed
        running, key = self._begin(job, memory_bytes), job.claim
        thread = threading.Thread(target=self._run_one, args=(key, running), name=f"job-{job.id[:8]}", daemon=True)
        self._held.add(key, running, thread)
        try:
            thread.start()
        except Exception:
            self._held.remove(key)
            self._pausing_until = time.monotonic() + _NO_THREAD_S
            with self._database.begin() as connection:  # where this fails too, `_end_unwanted` finds it
                transitions.give_back(connection, job, "the server has no thread for it")
            raise
        return True

    def _fits(self, job: Candidate, lane: Lane) -> bool:
        if self._held.fits(job, lane):
            return True
        if not lane and self._held.make_way(job):
            self._making_way = True  # no tuning begins meanwhile: one that gave way would take back what it gave
        return False

    def _run_one(self, key: Claim, running: Running) -> None:
        try:
            self._run(running)
        except Exception:  # noqa: BLE001  # nobody else would see it
            _LOG.exception("job %s", running.job.id)
        finally:
            self._held.remove(key)
            self.wake()
