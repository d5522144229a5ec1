"""What of the jobs that wait no live worker has."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import clock, events
from relaxc.service.jobs.database.engine import now
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.database.tables import jobs
from relaxc.service.jobs.job import State

__all__ = ["counts", "ids", "marked", "note", "waiting_since"]

_QUEUED = jobs.c.state == State.QUEUED


def ids(connection: Connection, key: str, kind: JobKind) -> list[str]:
    """Return the jobs of a kind that wait with the needs of this key."""
    return list(connection.scalars(sa.select(jobs.c.id).where(_QUEUED, jobs.c.needs_key == key, jobs.c.kind == kind)))


def marked(connection: Connection, id: str | None = None) -> dict[str, list[str]]:
    """Return the jobs, or the one, of which it was noted that nobody can take them, and what they lack."""
    wanted = sa.select(jobs.c.id, jobs.c.missing).where(_QUEUED, jobs.c.missing_since.is_not(None))
    rows = connection.execute(wanted if id is None else wanted.where(jobs.c.id == id))
    return {row.id: row.missing or [] for row in rows}


def waiting_since(connection: Connection, wait_s: float) -> list[str]:
    """Return the jobs of which it was noted that long ago, by the database's clock: servers' own may differ."""
    return list(connection.scalars(sa.select(jobs.c.id).where(_QUEUED, now() - jobs.c.missing_since > wait_s)))


def counts(connection: Connection) -> list[tuple[str, int, int]]:
    """Return the key of each needs that jobs wait with, how many do, and how many of them nobody can take."""
    counted = sa.select(jobs.c.needs_key, sa.func.count(), sa.func.count(jobs.c.missing_since))
    rows = connection.execute(counted.where(_QUEUED).group_by(jobs.c.needs_key))
    return [(key, number, stuck) for key, number, stuck in rows]


def note(connection: Connection, id: str, missing: list[str]) -> bool:
    """Note what the job lacks, nothing where somebody can take it again; False where it does not wait any more."""
    since = sa.func.coalesce(jobs.c.missing_since, now()) if missing else None
    columns: dict[str, Any] = {"missing": missing or None, "missing_since": since}
    return events.append(connection, id, [(clock.now(), told(missing))], _QUEUED, **columns)


def told(missing: list[str]) -> dict[str, Any]:
    """Return the event that says so."""
    return {"event": "waits", "missing": missing}
