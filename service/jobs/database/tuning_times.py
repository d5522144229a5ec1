"""How long an owner's tunings took in the last 30 days, and may take yet."""

from __future__ import annotations

from collections import defaultdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.rows import JobKind, JobRow
from relaxc.service.jobs.database.tables import jobs, tuning_times
from relaxc.service.jobs.database.upsert import insert_new
from relaxc.service.jobs.job import State
from relaxc.service.process.limits import tuning_time_s

__all__ = ["WINDOW_S", "note", "remove_old", "taken_s", "wait_s"]

WINDOW_S = 30 * 24 * 3600.0


def note(connection: Connection, job: JobRow, heard: float | None = None) -> None:
    """Count what a claim on a tuning has taken; once, however often it is told.

    It ended now, or when its server was `heard` of for the last time, in Unix time.
    """
    if job.kind is JobKind.TUNE and job.started is not None:
        now = clock.now()
        ended = now if heard is None else min(heard, now)
        facts = {"owner": job.owner, "ended": now, "seconds": max(0.0, ended - job.started)}
        insert_new(connection, tuning_times, job=job.id, epoch=job.epoch, **facts)


def taken_s(connection: Connection, owner: str) -> float:
    """Return the seconds of the owner's tunings: what they took, and of those that wait or run what they asked for."""
    spent: dict[str, float] = defaultdict(float)
    for noted in _noted(connection, owner):
        spent[noted.job] += noted.seconds
    live = jobs.c.owner == owner, jobs.c.kind == JobKind.TUNE, jobs.c.state.in_([State.QUEUED, State.RUNNING])
    for row in connection.execute(sa.select(jobs.c.id, jobs.c.extras).where(*live)):
        spent[row.id] = max(spent[row.id], tuning_time_s(row.extras.get("time_s")))
    return sum(spent.values())


def wait_s(connection: Connection, owner: str, too_much_s: float) -> float | None:
    """Return in how many seconds so much of what was taken is over 30 days ago; None where there is less of it."""
    for row in _noted(connection, owner):
        too_much_s -= row.seconds
        if too_much_s <= 0:
            return max(1.0, float(row.ended) + WINDOW_S - clock.now())
    return None


def remove_old(connection: Connection, before: float, most: int) -> int:
    """Forget at most `most` that ended before this time."""
    old = sa.select(tuning_times.c.job, tuning_times.c.epoch).where(tuning_times.c.ended < before)
    claims = [(row.job, row.epoch) for row in connection.execute(old.order_by(tuning_times.c.ended).limit(most))]
    mine = sa.tuple_(tuning_times.c.job, tuning_times.c.epoch).in_(claims)
    return connection.execute(sa.delete(tuning_times).where(mine)).rowcount if claims else 0


def _noted(connection: Connection, owner: str) -> list[sa.Row[tuple[str, float, float]]]:
    """Those of the last 30 days, the oldest first."""
    noted = sa.select(tuning_times.c.job, tuning_times.c.seconds, tuning_times.c.ended)
    mine = tuning_times.c.owner == owner, tuning_times.c.ended > clock.now() - WINDOW_S
    return list(connection.execute(noted.where(*mine).order_by(tuning_times.c.ended)))
