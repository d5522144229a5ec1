"""The trials of a tuning on their way into the database as they end, and what is made of them when it ends early."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

from service.errors import RelaxcError, ServiceError
from service.jobs.database import jobs, transitions, trials
from service.jobs.database.engine import Database
from service.jobs.database.rows import JobRow, Owner, RecordsRow
from service.jobs.database.transitions import held
from service.jobs.objects.recordsets import RecordSets
from service.tuning.told import Told, lines_of, records_of

__all__ = ["TrialLog", "kept_records", "settle_ended"]

_LOG = logging.getLogger("relaxc.jobs")
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
    """Keep the bytes of what a tuning has won so far; None where that is nothing. Raise StoreUnwritable."""
    found = records_of(told)
    if not len(found):
        return None
    owner, name = Owner(job.owner, frozenset()), f"{job.name} ({job.id})"
    return records.keep(owner, found.to_lines().encode(), name=name, job=job.id)


def settle_ended(database: Database, records: RecordSets) -> int:
    """Make record sets of what tunings had won that ended without a server to do it; return how many trials are gone.

    Any number of servers may do it at once. What cannot be kept now is kept the next time.
    """
    gone = 0
    try:
        with database.read() as connection:
            ended = trials.of_ended(connection)
        for id in ended:
            gone += _settle(database, records, id)
    except RelaxcError as error:
        _LOG.warning("the records of tunings that have ended: %s", error)
    return gone


def _settle(database: Database, records: RecordSets, id: str) -> int:
    with database.read() as connection:
        job, told = jobs.get(connection, id), trials.read(connection, id)
    row = kept_records(records, job, told)
    with database.begin() as connection:
        if row is not None:
            transitions.add_records(connection, row)
        return trials.remove(connection, id)
