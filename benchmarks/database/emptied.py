"""Retention of a full database, while somebody goes on writing: how long it takes, what it leaves, whom it holds up."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.database.calls import Case, append
from benchmarks.database.fill import INSTANCE
from relaxc.service.jobs.blobs.mirrored import open_blobs
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.tables import job_events, jobs
from relaxc.service.jobs.objects.allowance import Allowance
from relaxc.service.jobs.objects.models import Models
from relaxc.service.jobs.objects.recordsets import RecordSets
from relaxc.service.jobs.objects.uploads import Uploads
from relaxc.service.jobs.queue.sweep import Sweep
from relaxc.service.process.pool import Pool
from relaxc.service.process.workspace import Workspace

__all__ = ["empty"]


def _sizes(database: Database) -> dict[str, int]:
    """Return the size in bytes, and how much of that is free for what comes next: on PostgreSQL after a VACUUM.

    Autovacuum does the same within a minute or two. Files of PostgreSQL become smaller where their ends are free.
    """
    if database.is_sqlite:
        return database.sizes()
    free = """SELECT coalesce(sum(avail), 0) FROM pg_class AS c, LATERAL pg_freespace(c.oid)
        WHERE c.relkind IN ('r', 'i', 't') AND c.relnamespace = 'public'::regnamespace"""
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM"))
        connection.execute(sa.text("CREATE EXTENSION IF NOT EXISTS pg_freespacemap"))
        return {**database.sizes(), "free": int(connection.scalar(sa.text(free)) or 0)}


def empty(case: Case, folder: Path) -> dict[str, Any]:
    """Delete by the settings' rules; return counts, sizes, and the times of writes meanwhile, in seconds and bytes."""
    before, stopped, writes = case.database.sizes(), threading.Event(), []

    def write() -> None:
        while not stopped.is_set():
            begun = time.perf_counter()
            append(case)
            writes.append(time.perf_counter() - begun)
            stopped.wait(0.01)

    writer = threading.Thread(target=write)
    with Workspace(folder / "jobs") as workspace, closing(Pool()) as pool:
        blobs = open_blobs("", folder / "blobs")
        models = Models(case.database, blobs, pool, workspace)
        uploads = Uploads(blobs.local.root / "uploads", models, Allowance(case.database, INSTANCE), workspace)
        sweep = Sweep(case.database, blobs, uploads, models, RecordSets(case.database, blobs))
        writer.start()
        begun = time.perf_counter()
        sweep()
        seconds = time.perf_counter() - begun
        stopped.set()
        writer.join()
    ordered = sorted(writes)
    with case.database.read() as connection:
        left = {
            table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in (jobs, job_events)
        }
    return {
        "seconds": seconds,
        "removed": {f"{place}/{name}": count for (place, name), count in sweep.removed.counts().items() if count},
        "left": left,
        "bytes_before": before,
        "bytes_after": _sizes(case.database),
        "writes": {
            "count": len(ordered),
            "p50_s": ordered[len(ordered) // 2],
            "p99_s": ordered[int(0.99 * len(ordered))],
            "max_s": ordered[-1],
        },
    }
