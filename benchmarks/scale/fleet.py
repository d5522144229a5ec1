"""Workers without a compiler: each claims, waits for as long as a job takes, tells events and ends it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

import psutil
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import claims, events, instances, jobs, transitions, trials
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobKind, JobRow
from relaxc.service.jobs.database.transitions import Outcome, held
from relaxc.service.jobs.queue.scheduler import CLAIM_LOCK, anything
from relaxc.service.tuning.told import Told
from tests.jobs.rows import values_of

__all__ = ["Measured", "Stand"]

_FLUSHES = 2
"""Transactions of events between the beginning and the end of a quick compile (docs/service.md)."""

_WAITING = 64
"""Jobs that wait, as many as RELAXC_QUEUE_MAX lets: each claim looks at all of them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What so many workers did in `seconds`; `claim_s` is how long the lock of a claim was held, on average."""

    workers: int
    seconds: float
    done: int
    cpu_s: float
    claim_s: float

    @property
    def per_min(self) -> float:
        """Jobs, or trials, a minute."""
        return 60.0 * self.done / self.seconds

    @property
    def demand_s(self) -> float:
        """Processor time of PostgreSQL for each."""
        return self.cpu_s / max(1, self.done)


class Stand:
    """A queue that is kept full, over a PostgreSQL of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = Database(url, 4)
        with self.database.read() as connection:
            pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        found = psutil.Process(pid).parent()
        assert found is not None
        self._postmaster = found
        self._held_s = 0.0
        self._claims = 0
        self._lock = threading.Lock()

    def _cpu_s(self) -> float:
        return _cpu_s(self._postmaster)

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def fill(self, kind: JobKind = JobKind.COMPILE) -> None:
        """Have as many wait as may."""
        with self.database.begin() as connection:
            for _ in range(_WAITING - jobs.waiting(connection, "k_0")[0]):
                _put(connection, kind)

    def jobs(self, workers: int, think_s: float, seconds: float) -> Measured:
        """Return what workers did with jobs that take `think_s` each; who has ended one puts another into the queue."""

        def turn(database: Database, me: str) -> int:
            job = self._claim(database, me)
            if job is None:
                return 0
            time.sleep(think_s)
            for number in range(_FLUSHES):
                with database.begin() as connection:
                    told = [(time.time(), {"event": "stage", "stage": "build", "state": "start"})] * 6
                    events.append(connection, job.id, told, *held(job.claim), stage=f"stage{number}")
            with database.begin() as connection:
                transitions.end(connection, job, Outcome(result={"build": {}}))
            with database.begin() as connection:
                _put(connection, JobKind.COMPILE)
            return 1

        self.fill()
        return self._run(workers, seconds, turn)

    def trials(self, workers: int, think_s: float, seconds: float) -> Measured:
        """Return what workers did with trials of one tuning each, which take `think_s`."""
        running: dict[str, JobRow] = {}

        def turn(database: Database, me: str) -> int:
            if me not in running:
                with database.begin() as connection:
                    _put(connection, JobKind.TUNE)
                found = self._claim(database, me, lane=True)
                if found is None:
                    return 0
                running[me] = found
            job = running[me]
            time.sleep(think_s)
            name, value = f"trial task rows={secrets.token_hex(4)}", {"kind": "measured", "seconds": 1e-3}
            told = Told("0123456789abcdef", name, value)
            with database.begin() as connection:
                trials.append(connection, job.id, [told], *held(job.claim))
            return 1

        return self._run(workers, seconds, turn)

    def _claim(self, database: Database, me: str, *, lane: bool = False) -> JobRow | None:
        with database.read() as connection:
            accepts = anything(connection)[lane]
        with database.begin() as connection:
            database.lock(connection, CLAIM_LOCK)
            begun = time.perf_counter()
            claimed = claims.claim(connection, me, lane, lambda job: True, accepts=accepts or ("",))
        with self._lock:
            self._held_s += time.perf_counter() - begun
            self._claims += 1
        return None if claimed is None else claimed[0]

    def _run(self, workers: int, seconds: float, turn: Callable[[Database, str], int]) -> Measured:
        done, stop = [0] * workers, threading.Event()
        self._held_s, self._claims = 0.0, 0

        def work(number: int, database: Database) -> None:
            me = f"w_{secrets.token_hex(8)}"
            with closing(database):
                with database.begin() as connection:
                    instances.register(connection, me, me, me)
                while not stop.is_set():
                    done[number] += turn(database, me)

        opened = [Database(self.url, 2) for _ in range(workers)]  # one after another: alembic is not for threads
        threads = [threading.Thread(target=work, args=each) for each in enumerate(opened)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)  # all are connected
        before, begun, already = self._cpu_s(), time.perf_counter(), sum(done)
        time.sleep(seconds)
        found, took_s, count = self._cpu_s() - before, time.perf_counter() - begun, sum(done) - already
        stop.set()
        for thread in threads:
            thread.join()
        return Measured(workers, took_s, count, found, self._held_s / max(1, self._claims))

    def looks(self, times: int) -> float:
        """Return the processor time of PostgreSQL for one look of an idle worker that was told of a job."""
        self.fill()
        before = self._cpu_s()
        for _ in range(times):
            with self.database.read() as connection:
                jobs.waiting_needs(connection)
        return (self._cpu_s() - before) / times


def _cpu_s(postmaster: psutil.Process) -> float:
    """The processor time of a PostgreSQL: of its processes, and of those that have ended."""
    own = postmaster.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for process in postmaster.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _put(connection: Connection, kind: JobKind) -> None:
    owner, key = f"k_{secrets.randbelow(4)}", secrets.token_hex(32)
    jobs.insert(connection, **values_of(kind=kind, owner=owner, request_key=key))
