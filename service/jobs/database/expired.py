"""Rows that are old: found by an index and deleted, at most so many in a transaction, so that nobody waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.database.shares import VIRTUAL_TIME
from relaxc.service.jobs.database.tables import audit_log, deliveries, idempotency, job_events, job_trials, jobs, shares
from relaxc.service.jobs.job import Claim, State

__all__ = [
    "RemovedJobs",
    "remove_audit",
    "remove_deliveries",
    "remove_idempotency",
    "remove_jobs",
    "remove_jobs_over",
    "remove_shares",
]

_JOBS = 100


@dataclass(frozen=True, slots=True)
class RemovedJobs:
    """The last claims and the kinds of jobs, by which their blobs are found, and how many rows went, by table."""

    claims: list[tuple[Claim, JobKind]]
    rows: dict[str, int]


def remove_jobs(connection: Connection, before: float, most: int) -> RemovedJobs:
    """Remove jobs that ended before this time, with all that they told: a job at least, and about `most` events."""
    return _remove_jobs(connection, jobs.c.finished < before, jobs.c.finished, most)


def remove_jobs_over(connection: Connection, keep: int, most: int) -> RemovedJobs:
    """Remove as `remove_jobs` the oldest jobs of one owner who has more than `keep` that have ended."""
    ended = jobs.c.finished.is_not(None)
    many = sa.select(jobs.c.owner).where(ended).group_by(jobs.c.owner).having(sa.func.count() > keep).limit(1)
    mine = sa.and_(jobs.c.owner == connection.scalar(many), ended)
    last = sa.select(jobs.c.number).where(mine).order_by(jobs.c.number.desc()).offset(keep).limit(1)
    return _remove_jobs(connection, sa.and_(mine, jobs.c.number <= last.scalar_subquery()), jobs.c.number, most)


def _remove_jobs(
    connection: Connection, old: sa.ColumnElement[bool], order: sa.ColumnElement[Any], most: int
) -> RemovedJobs:
    columns = sa.select(jobs.c.id, jobs.c.epoch, jobs.c.kind, jobs.c.events)
    rows = connection.execute(columns.where(old).order_by(order).limit(_JOBS)).all()
    chosen: list[Any] = []
    events = 0
    for row in rows:
        events += row.events
        if chosen and events > most:
            break
        chosen.append(row)
    ids = [row.id for row in chosen]
    theirs = ((job_trials, job_trials.c.job), (job_events, job_events.c.job), (jobs, jobs.c.id)) if ids else ()
    gone = {
        table.name: connection.execute(sa.delete(table).where(column.in_(ids))).rowcount for table, column in theirs
    }
    return RemovedJobs([((row.id, row.epoch), JobKind(row.kind)) for row in chosen], gone)


def remove_audit(connection: Connection, before: float, most: int) -> int:
    """Remove rows of the audit log from before this time, the oldest first."""
    log = audit_log.c
    return _remove(connection, log.number, log.time < before, most, order=(log.time, log.number))


def remove_deliveries(connection: Connection, before: float, most: int) -> int:
    """Remove webhook calls from before this time that are settled."""
    call = deliveries.c
    settled = call.state.in_(["delivered", "failed"])
    return _remove(connection, call.id, sa.and_(call.created < before, settled), most, order=(call.created,))


def remove_idempotency(connection: Connection, before: float, most: int) -> int:
    """Forget Idempotency-Keys from before this time."""
    key = idempotency.c
    old = sa.select(key.owner, key.key).where(key.created <= before).order_by(key.created).limit(most)
    pairs = [(row.owner, row.key) for row in connection.execute(old)]
    mine = sa.tuple_(key.owner, key.key).in_(pairs)
    return connection.execute(sa.delete(idempotency).where(mine, key.created <= before)).rowcount if pairs else 0


def remove_shares(connection: Connection, most: int) -> int:
    """Forget the turns of owners without jobs whose turn is past: the next would be as a new owner's."""
    now = sa.select(shares.c.finish).where(shares.c.owner == VIRTUAL_TIME).scalar_subquery()
    live = sa.select(jobs.c.owner).where(jobs.c.state.in_([State.QUEUED, State.RUNNING]))
    past = sa.and_(shares.c.owner != VIRTUAL_TIME, shares.c.finish <= now, shares.c.owner.not_in(live))
    return _remove(connection, shares.c.owner, past, most)


def _remove(
    connection: Connection,
    key: sa.ColumnElement[Any],
    old: sa.ColumnElement[bool],
    most: int,
    order: tuple[Any, ...] = (),
) -> int:
    """Both statements say what is old: a row that has changed between them stays."""
    ids = connection.scalars(sa.select(key).where(old).order_by(*order).limit(most)).all()
    table = key.table
    return connection.execute(sa.delete(table).where(key.in_(ids), old)).rowcount if ids else 0
