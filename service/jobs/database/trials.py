"""What a tuning has told of its trials: it goes on from there when it is begun again. None is left of an ended job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.jobs.database import events
from service.jobs.database.tables import job_trials, jobs
from service.tuning.told import TRIAL, Told

__all__ = ["append", "of_ended", "read", "remove"]


def append(connection: Connection, job: str, told: Sequence[Told], *where: Any) -> bool:
    """Add them in order; write nothing and return False unless `where` holds of the job's row, which stays locked.

    A trial is progress: what servers died before it no longer counts against the job.
    """
    columns = {"attempts": 1} if any(one.kind == TRIAL for one in told) else {}
    if not events.append(connection, job, (), *where, **columns):
        return False
    last = connection.scalar(sa.select(sa.func.max(job_trials.c.seq)).where(job_trials.c.job == job)) or 0
    rows = [{"job": job, "seq": last + i, **one.to_dict()} for i, one in enumerate(told, start=1)]
    connection.execute(sa.insert(job_trials), rows)
    return True


def read(connection: Connection, job: str) -> list[Told]:
    """Return everything that the job has told, in order."""
    rows = connection.execute(sa.select(job_trials).where(job_trials.c.job == job).order_by(job_trials.c.seq))
    return [Told(row.run, row.name, row.value) for row in rows]


def remove(connection: Connection, job: str) -> int:
    """Forget it all; return how many rows that was."""
    return connection.execute(sa.delete(job_trials).where(job_trials.c.job == job)).rowcount


def of_ended(connection: Connection, limit: int = 100) -> list[str]:
    """Return jobs that have ended and whose trials are still there."""
    there = sa.select(job_trials.c.job).distinct()
    ended = sa.select(jobs.c.id).where(jobs.c.id.in_(there), jobs.c.finished.is_not(None))
    return list(connection.scalars(ended.limit(limit)))
