"""Removes what is old: unfinished uploads, models that nobody has, jobs that ended long ago, bytes without a row."""

from __future__ import annotations

import time

from service.config import settings
from service.jobs.blobs.mirrored import Blobs
from service.jobs.database import deliveries, idempotency, jobs
from service.jobs.database.engine import Database
from service.jobs.database.rows import JobKind
from service.jobs.job import Claim
from service.jobs.objects.models import Models
from service.jobs.objects.recordsets import RecordSets
from service.jobs.objects.uploads import Uploads
from service.jobs.queue.files import blobs_of
from service.jobs.queue.orphans import remove_orphans
from service.jobs.queue.trials import settle_ended

__all__ = ["sweep"]

_DELIVERIES_KEPT_S = 7 * 24 * 3600.0


def sweep(database: Database, blobs: Blobs, uploads: Uploads, models: Models, records: RecordSets) -> None:
    """Any number of servers may do it at once. Raise ServiceError, StoreUnwritable: the next one goes on."""
    uploads.sweep(settings().upload_expiry_s)
    blobs.local.sweep()
    with database.begin() as connection:
        database.take_time(connection)
        deliveries.remove_old(connection, time.time() - _DELIVERIES_KEPT_S)
        idempotency.remove_old(connection)
    settle_ended(database, records)
    while gone := _forget_jobs(database):
        for claim, kind in gone:
            for name in blobs_of(claim, kind):
                blobs.remove(name)
    models.sweep()
    remove_orphans(database, blobs.local)


def _forget_jobs(database: Database) -> list[tuple[Claim, JobKind]]:
    with database.begin() as connection:
        database.take_time(connection)  # five hundred jobs may have five million events
        return jobs.remove_ended(connection, time.time() - settings().job_expiry_s)
