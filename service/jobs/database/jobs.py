"""Jobs: asking for them, and asking about them. What moves one from state to state is in `transitions`."""

from __future__ import annotations

import base64
import secrets
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from service.errors import InvalidOption
from service.jobs.database.rows import JobKind, JobPage, JobRow
from service.jobs.database.tables import job_events, job_trials, jobs
from service.jobs.database.upsert import insert_new
from service.jobs.job import Claim, State

__all__ = [
    "any_queued",
    "count",
    "depth",
    "find",
    "find_live",
    "get",
    "insert",
    "new_id",
    "page",
    "remove_ended",
    "row_of",
    "running_on",
    "waiting",
]

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LETTERS = 22  # 131 bits


def new_id() -> str:
    """Return an id that nobody can guess."""
    return "j_" + "".join(secrets.choice(_LETTERS) for _ in range(_ID_LETTERS))


def row_of(row: Row[Any]) -> JobRow:
    """Return a row of the table as a value."""
    values = dict(row._mapping)
    done, total = values.pop("done"), values.pop("total")
    for name in ("weight", "memory_bytes"):
        del values[name]
    progress = None if done is None or total is None else (done, total)
    return JobRow(**{**values, "kind": JobKind(row.kind), "state": State(row.state), "progress": progress})


def insert(connection: Connection, **values: Any) -> str | None:
    """Put a queued job into the table and return its id; None when its owner has an equal one that lives."""
    id = new_id()
    defaults = {"state": State.QUEUED, "attempts": 0, "cancelling": False, "events": 0, "created": time.time()}
    return id if insert_new(connection, jobs, id=id, **{**defaults, **values}) else None


def find(connection: Connection, id: str, owner: str | None = None) -> JobRow | None:
    """Return the job with this id, of this owner if one is named."""
    wanted = sa.select(jobs).where(jobs.c.id == id)
    row = connection.execute(wanted if owner is None else wanted.where(jobs.c.owner == owner)).one_or_none()
    return None if row is None else row_of(row)


def get(connection: Connection, id: str) -> JobRow:
    """Return the job that this transaction has put in or changed."""
    row = find(connection, id)
    assert row is not None
    return row


def find_live(connection: Connection, owner: str, request_key: str) -> JobRow | None:
    """Return the owner's job for this request that has not ended."""
    live = jobs.c.state.in_([State.QUEUED, State.RUNNING])
    row = connection.execute(
        sa.select(jobs).where(jobs.c.owner == owner, jobs.c.request_key == request_key, live)
    ).one_or_none()
    return None if row is None else row_of(row)


def page(
    connection: Connection,
    owner: str | None,
    *,
    state: State | None,
    kind: JobKind | None,
    model: str | None,
    limit: int,
    cursor: str | None,
) -> JobPage:
    """Return jobs, the newest first, of all owners if None is named. Raise InvalidOption for a foreign cursor."""
    wanted = sa.select(jobs).order_by(jobs.c.number.desc()).limit(limit + 1)
    for column, value in ((jobs.c.owner, owner), (jobs.c.state, state), (jobs.c.kind, kind), (jobs.c.model, model)):
        if value is not None:
            wanted = wanted.where(column == str(value))
    if cursor is not None:
        wanted = wanted.where(jobs.c.number < _number_of(cursor))
    found = [row_of(row) for row in connection.execute(wanted)]
    shown = tuple(found[:limit])
    return JobPage(shown, _cursor_of(shown[-1].number) if len(found) > limit else None)


def _cursor_of(number: int) -> str:
    return base64.urlsafe_b64encode(f"n{number}".encode()).decode().rstrip("=")


def _number_of(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        number = int(text.removeprefix("n"))
    except ValueError:
        number = -1
    if not 0 <= number < 2**63 or _cursor_of(number) != cursor:
        raise InvalidOption("the cursor is none that this service gave", option="cursor")
    return number


def count(connection: Connection) -> dict[State, int]:
    """Return how many jobs are queued, and how many run."""
    live = sa.select(jobs.c.state, sa.func.count()).where(jobs.c.state.in_([State.QUEUED, State.RUNNING]))
    return {State(state): number for state, number in connection.execute(live.group_by(jobs.c.state))}


def depth(connection: Connection) -> dict[tuple[JobKind, State], int]:
    """Return how many jobs of each kind are queued, and how many run."""
    live = sa.select(jobs.c.kind, jobs.c.state, sa.func.count()).where(jobs.c.state.in_([State.QUEUED, State.RUNNING]))
    rows = connection.execute(live.group_by(jobs.c.kind, jobs.c.state))
    return {(JobKind(kind), State(state)): number for kind, state, number in rows}


def waiting(connection: Connection, owner: str) -> tuple[int, int]:
    """Return how many jobs wait in all, and how many of this owner's."""
    mine = sa.func.coalesce(sa.func.sum(sa.case((jobs.c.owner == owner, 1), else_=0)), 0)
    row = connection.execute(sa.select(sa.func.count(), mine).where(jobs.c.state == State.QUEUED)).one()
    return int(row[0]), int(row[1])


def remove_ended(connection: Connection, before: float, limit: int = 500) -> list[tuple[Claim, JobKind]]:
    """Remove jobs that ended before this time, with their events; return their last claims, and their kinds."""
    old = sa.select(jobs.c.id, jobs.c.epoch, jobs.c.kind).where(jobs.c.finished < before)
    rows = connection.execute(old.order_by(jobs.c.finished).limit(limit)).all()
    ids = [row.id for row in rows]
    if ids:
        connection.execute(sa.delete(job_trials).where(job_trials.c.job.in_(ids)))
        connection.execute(sa.delete(job_events).where(job_events.c.job.in_(ids)))
        connection.execute(sa.delete(jobs).where(jobs.c.id.in_(ids)))
    return [((row.id, row.epoch), JobKind(row.kind)) for row in rows]


def any_queued(connection: Connection) -> bool:
    """Return whether a job waits."""
    return connection.scalar(sa.select(sa.literal(1)).where(jobs.c.state == State.QUEUED).limit(1)) is not None


def running_on(connection: Connection, instance: str) -> dict[Claim, bool]:
    """Return the claims that this server has on jobs that run, and whether these are to be cancelled."""
    mine = sa.select(jobs.c.id, jobs.c.epoch, jobs.c.cancelling)
    rows = connection.execute(mine.where(jobs.c.state == State.RUNNING, jobs.c.instance == instance))
    return {(row.id, row.epoch): row.cancelling for row in rows}
