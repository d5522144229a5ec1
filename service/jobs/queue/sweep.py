"""Removes what is old by the rules, in transactions so small that nobody waits for them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from relaxc.service.config import settings
from relaxc.service.errors import RelaxcError, ServiceError
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database import clock, expired, tables, trials, tuning_times, uses
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.objects.models import Models
from relaxc.service.jobs.objects.recordsets import RecordSets
from relaxc.service.jobs.objects.uploads import Uploads
from relaxc.service.jobs.queue.bucket import BucketSweep
from relaxc.service.jobs.queue.files import blobs_of
from relaxc.service.jobs.queue.orphans import remove_orphans
from relaxc.service.jobs.queue.retention import Place, Removed
from relaxc.service.jobs.queue.trials import settle_ended

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection

    Remove = Callable[[Connection], dict[str, int]]
    RemoveOld = Callable[[Connection, float, int], int]

__all__ = ["Sweep"]

_LOG = logging.getLogger("relaxc.retention")
_ROWS = 1000
_EVENTS = 2000
"""Of jobs that are removed together: some milliseconds, unless one job alone has told more."""


_PAUSE_S = 0.02
_PAGES = 500


class Sweep:
    """What a server does every ten minutes; any number of servers may do it at once. `removed` counts.

    A part that fails, as with a bucket that does not answer, is logged and holds up no other.
    """

    def __init__(self, database: Database, blobs: Blobs, uploads: Uploads, models: Models, records: RecordSets) -> None:
        self.removed = Removed()
        self.finished: float | None = None
        """When one last came to its end without a failure, in Unix time."""
        self._database = database
        self._blobs = blobs
        self._uploads = uploads
        self._models = models
        self._records = records
        self._bucket = BucketSweep(database, blobs, self.removed)
        self._closed = threading.Event()

    def needed_artifacts(self) -> frozenset[str] | None:
        """Return the artifacts that live jobs need; None where the database does not answer."""
        try:
            with self._database.read() as connection:
                return uses.needed(connection).artifacts
        except ServiceError:
            return None

    def close(self) -> None:
        """End one that is under way, after the transaction that it is in."""
        self._closed.set()

    def __call__(self) -> None:
        """Remove everything that is old now."""
        parts = (self._files, self._rows, self._owned, self._jobs, self._contents, self._bucket, self._shrink)
        failed = False
        for part in parts:
            if self._closed.is_set():
                return
            try:
                part()
            except RelaxcError as error:
                failed = True
                _LOG.warning("%s", error)
        self.finished = self.finished if failed else clock.now()

    def _files(self) -> None:
        values = settings()
        self._count(Place.BLOBS, "uploads", self._uploads.sweep(values.upload_expiry_s))
        self._blobs.local.sweep(values.orphan_expiry_s, clock.file_time())

    def _rows(self) -> None:
        """Of tables whose rows nothing depends on."""
        values, now = settings(), clock.now()
        ages: tuple[tuple[Table, RemoveOld, float], ...] = (
            (tables.deliveries, expired.remove_deliveries, values.delivery_expiry_s),
            (tables.idempotency, expired.remove_idempotency, values.idempotency_expiry_s),
            (tables.audit_log, expired.remove_audit, values.audit_expiry_s),
        )
        for table, remove, age_s in ages:
            if age_s:
                self._all(_old(table, remove, now - age_s))
        self._all(lambda connection: {tables.shares.name: expired.remove_shares(connection, _ROWS)})
        self._all(_old(tables.tuning_times, tuning_times.remove_old, now - tuning_times.WINDOW_S))

    def _owned(self) -> None:
        """What owners have not used: their bytes go once nobody has them, with `_contents` and `_bucket`."""
        values, now = settings(), clock.now()
        ages = values.model_expiry_s, values.artifact_expiry_s, values.records_expiry_s
        for table, age_s in zip(uses.OWNED, ages, strict=True):
            if age_s:
                self._all(_unused(table, now - age_s))

    def _jobs(self) -> None:
        self._count(Place.TABLE, "job_trials", settle_ended(self._database, self._records))
        age_s = settings().job_expiry_s
        before = clock.now() - age_s
        if age_s:
            self._all(_old(tables.job_trials, trials.remove_old, before))
            self._remove_jobs(lambda connection: expired.remove_jobs(connection, before, _EVENTS))
        if settings().jobs_kept < math.inf:
            keep = int(settings().jobs_kept)
            self._remove_jobs(lambda connection: expired.remove_jobs_over(connection, keep, _EVENTS))

    def _remove_jobs(self, remove: Callable[[Connection], expired.RemovedJobs]) -> None:
        while not self._closed.is_set():
            begun = time.monotonic()
            with self._database.begin() as connection:
                gone = remove(connection)
            if not gone.claims:
                return
            for table, count in gone.rows.items():
                self._count(Place.TABLE, table, count)
            for claim, kind in gone.claims:
                for name in blobs_of(claim, kind):
                    self._blobs.remove(name)
            self._count(Place.BLOBS, "jobs", len(gone.claims))
            self._pause(begun)

    def _contents(self) -> None:
        for content in self._models.sweep():
            self._count(Place.TABLE, "model_contents", 1)
            self._count(Place.TABLE, "model_files", len(content.files))
            self._count(Place.BLOBS, "models", 1)
        for name in remove_orphans(self._database, self._blobs.local):
            self._count(Place.BLOBS, name.partition("/")[0], 1)

    def _shrink(self) -> None:
        """Give free pages of the database back to the file system, but for some that will be used again."""
        while not self._closed.is_set():
            begun = time.monotonic()
            if not self._database.give_back(_PAGES):
                return
            self._pause(begun)

    def _all(self, remove: Remove) -> None:
        """A batch after the other, until there is nothing to remove; each gives how many rows it took, by table."""
        while not self._closed.is_set():
            begun = time.monotonic()
            with self._database.begin() as connection:
                gone = remove(connection)
            for name, count in gone.items():
                self._count(Place.TABLE, name, count)
            if not any(gone.values()):
                return
            self._pause(begun)

    def _pause(self, begun: float) -> None:
        """Others write for as long as this has held them up: SQLite's writers do not queue in order."""
        self._closed.wait(max(_PAUSE_S, time.monotonic() - begun))

    def _count(self, place: Place, name: str, count: int) -> None:
        self.removed.add(place, name, count)


def _old(table: Table, remove: RemoveOld, before: float) -> Remove:
    return lambda connection: {table.name: remove(connection, before, _ROWS)}


def _unused(table: Table, before: float) -> Remove:
    def remove(connection: Connection) -> dict[str, int]:
        keep: frozenset[str] = getattr(uses.needed(connection), table.name)
        return uses.remove_unused(connection, table, before, keep, _ROWS)

    return remove
