"""The story of each job: numbered events, written in the order of their numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database.rows import EventRow
from relaxc.service.jobs.database.tables import job_events, jobs

__all__ = ["append", "counts", "read"]


def append(
    connection: Connection, job: str, told: Sequence[tuple[float, dict[str, Any]]], *where: Any, **columns: Any
) -> bool:
    """Add events (time, data), and give the job's row `columns`; write nothing and return False unless `where` holds.

    The row stays locked until the transaction ends, so that nobody sees a number before a smaller one.
    """
    changed = sa.update(jobs).where(jobs.c.id == job, *where)
    count = connection.scalar(changed.values(events=jobs.c.events + len(told), **columns).returning(jobs.c.events))
    if count is None:
        return False
    first = count - len(told) + 1
    rows = [{"job": job, "seq": first + i, "time": time, "data": data} for i, (time, data) in enumerate(told)]
    if rows:
        connection.execute(sa.insert(job_events), rows)
    return True


def read(connection: Connection, job: str, after: int, limit: int) -> tuple[EventRow, ...]:
    """At most `limit` events with a number over `after`, in order."""
    found = sa.select(job_events).where(job_events.c.job == job, job_events.c.seq > after)
    rows = connection.execute(found.order_by(job_events.c.seq).limit(limit)).all()
    return tuple(EventRow(row.job, row.seq, row.time, row.data) for row in rows)


def counts(connection: Connection, ids: Collection[str]) -> dict[str, int]:
    """Return how many events each of these jobs has."""
    rows = connection.execute(sa.select(jobs.c.id, jobs.c.events).where(jobs.c.id.in_(ids))).all()
    return {row.id: row.events for row in rows}
