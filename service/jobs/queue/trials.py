"""The trials of a tuning on their way into the database as they end, and what is made of them when it ends early."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

from relaxc.service.errors import RelaxcError, ServiceError
from relaxc.service.jobs.database import jobs, transitions, trials
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobRow, Owner, RecordsRow
from relaxc.service.jobs.database.transitions import held
from relaxc.service.jobs.job import State
from relaxc.service.jobs.objects.recordsets import RecordSets
from relaxc.service.tuning.told import Told, lines_of, records_of

__all__ = ["TrialLog", "kept_records", "settle", "settle_ended"]

_LOG = logging.getLogger("relaxc.jobs")
_AT_ONCE = 1000
_PAUSE_S = 0.02
"""In which others write: SQLite's writers do not queue in order."""

_MAX_BYTES = 64 << 20
"""What a job may tell of its trials, in all its claims; some hundred thousand trials."""


class TrialLog:
    """What one claim on a job tells of trials. Any thread may call it; each is written at once, in order."""

    def __init__(self, database: Database, job: JobRow) -> None:
        self._database = database
        self._job = job
        self._pending: list[Told] = []
        self._left_bytes = _MAX_BYTES
        self._lock = threading.RLock()
        self.lost = False
        """Whether the claim was found to be over."""

    def known(self) -> list[Told]:
        """Return what earlier claims have told. Raise ServiceError."""
        with self._database.read() as connection:
            found = trials.read(connection, self._job.id)
        self._left_bytes = _MAX_BYTES - len(lines_of(found))
        return found

    def take(self, data: dict[str, Any]) -> None:
        """Add what the job's process says of a trial; what is none is left out."""
        with self._lock:
            try:
                told = Told.of(data)
            except (ValueError, TypeError) as error:
                _LOG.warning("job %s tells of no trial: %s", self._job.id, error)
                return
            self._left_bytes -= len(lines_of([told]))
            if self._left_bytes >= 0:
                self._pending.append(told)
                self.flush()

    def flush(self) -> None:
        """Write what is pending, which is kept while the database does not answer."""
        with self._lock:
            if not self._pending or self.lost:
                return
            try:
                with self._database.begin() as connection:
                    mine = trials.append(connection, self._job.id, self._pending, *held(self._job.claim))
            except ServiceError as error:
                _LOG.warning("job %s: %s", self._job.id, error)
                return
            self.lost = not mine
            self._pending = []


def kept_records(records: RecordSets, job: JobRow, told: Iterable[Told]) -> RecordsRow | None:
    """Keep the bytes of what a tuning has won so far; None where that is nothing.

    Raise StoreUnwritable, StorageQuotaExceeded.
    """
    found = records_of(told)
    if not len(found):
        return None
    owner, name = Owner(job.owner, frozenset()), f"{job.name} ({job.id})"
    return records.keep(owner, found.to_lines().encode(), name=name, job=job.id)


def settle_ended(database: Database, records: RecordSets) -> int:
    """Do as `settle` for every tuning that has ended; return how many trials are gone. Raise ServiceError."""
    gone, last = 0, ""
    while ended := _ended(database, last):
        gone += sum(settle(database, records, id) for id in ended)
        last = ended[-1]
    return gone


def settle(database: Database, records: RecordSets, id: str) -> int:
    """Make a record set of what a tuning had won that ended without one, and forget its trials; return how many.

    Nothing happens to one that goes on. Any number of servers may do it at once. What cannot be kept now, also as its
    owner has no room for it, is kept the next time.
    """
    try:
        return _removed(database, id) if _is_settled(database, records, id) else 0
    except RelaxcError as error:
        _LOG.warning("the records of job %s: %s", id, error)
        return 0


def _ended(database: Database, after: str) -> list[str]:
    with database.read() as connection:
        return trials.of_ended(connection, after)


def _is_settled(database: Database, records: RecordSets, id: str) -> bool:
    """Whether the job needs its trials no more."""
    with database.read() as connection:
        job = jobs.find(connection, id)
        if job is None or job.records is not None or job.state is State.SUCCEEDED:
            return True
        if not job.ended:
            return False
        told = trials.read(connection, id)
    row = kept_records(records, job, told)
    if row is not None:
        with database.begin() as connection:
            transitions.add_records(connection, row)
    return True


def _removed(database: Database, id: str) -> int:
    """Forget a job's trials, in transactions so small that nobody waits for them; return how many there were."""
    gone = 0
    while True:
        with database.begin() as connection:
            count = trials.remove(connection, id, _AT_ONCE)
        gone += count
        if count < _AT_ONCE:
            return gone
        time.sleep(_PAUSE_S)
