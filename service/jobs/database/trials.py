"""What a tuning has told of its trials: it goes on from there when it is begun again, and once it has ended they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import events
from relaxc.service.jobs.database.tables import job_trials, jobs
from relaxc.service.tuning.told import TRIAL, Told

__all__ = ["append", "of_ended", "read", "remove", "remove_old"]


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


def remove(connection: Connection, job: str, most: int) -> int:
    """Forget at most so many of them, the oldest; return how many that was."""
    its = job_trials.c.job == job
    oldest = sa.select(job_trials.c.seq).where(its).order_by(job_trials.c.seq).limit(most).subquery()
    last = connection.scalar(sa.select(sa.func.max(oldest.c.seq)))
    return (
        0 if last is None else connection.execute(sa.delete(job_trials).where(its, job_trials.c.seq <= last)).rowcount
    )


def remove_old(connection: Connection, before: float, most: int) -> int:
    """Forget at most so many of a job that ended before this time; return how many that was."""
    there = sa.exists().where(job_trials.c.job == jobs.c.id)
    ended = sa.select(jobs.c.id).where(jobs.c.finished < before, there).order_by(jobs.c.finished).limit(1)
    job = connection.scalar(ended)
    return 0 if job is None else remove(connection, job, most)


def of_ended(connection: Connection, after: str = "", limit: int = 100) -> list[str]:
    """Return jobs that have ended and whose trials are still there, by id, those beyond `after`."""
    there = sa.select(job_trials.c.job).where(job_trials.c.job > after).distinct()
    ended = sa.select(jobs.c.id).where(jobs.c.id.in_(there), jobs.c.finished.is_not(None))
    return list(connection.scalars(ended.order_by(jobs.c.id).limit(limit)))
