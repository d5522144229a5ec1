"""Jobs: asking for them, and asking about them. What moves one from state to state is in `transitions`."""

from __future__ import annotations

import secrets
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from relaxc.service.jobs.database import clock, cursors
from relaxc.service.jobs.database.rows import JobKind, JobPage, JobRow
from relaxc.service.jobs.database.tables import jobs, owners
from relaxc.service.jobs.database.upsert import insert_new
from relaxc.service.jobs.job import Claim, State

__all__ = [
    "count",
    "depth",
    "find",
    "find_live",
    "get",
    "insert",
    "needs_of",
    "new_id",
    "page",
    "row_of",
    "running_on",
    "waiting",
    "waiting_needs",
]

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LETTERS = 22  # 131 bits

_NEEDS = ("needs", "needs_key", "missing_since")
"""Columns that decide where a job runs, and are no matter of who asked for it."""

_LISTED_CHARS = 500
"""Of an error's message."""

_ERROR = {
    **{name: jobs.c.error[name].as_string() for name in ("code", "remedy", "fault", "node")},
    "message": sa.func.substr(jobs.c.error["message"].as_string(), 1, _LISTED_CHARS),
    "retryable": jobs.c.error["retryable"].as_boolean(),
}
_LISTED = (
    *(column for column in jobs.c if column.name not in ("result", "error", *_NEEDS)),
    *(value.label(f"error_{name}") for name, value in _ERROR.items()),
)


def new_id() -> str:
    """Return an id that nobody can guess."""
    return "j_" + "".join(secrets.choice(_LETTERS) for _ in range(_ID_LETTERS))


def row_of(row: Row[Any]) -> JobRow:
    """Return a row of the table as a value."""
    return _row(dict(row._mapping))


def _row(values: dict[str, Any]) -> JobRow:
    done, total = values.pop("done"), values.pop("total")
    for name in ("weight", "memory_bytes", *_NEEDS):
        values.pop(name, None)
    progress = None if done is None or total is None else (done, total)
    typed = {"kind": JobKind(values["kind"]), "state": State(values["state"]), "progress": progress}
    return JobRow(**{**values, **typed})


def insert(connection: Connection, **values: Any) -> str | None:
    """Put a queued job into the table and return its id; None when its owner has an equal one that lives."""
    id = new_id()
    defaults = {"state": State.QUEUED, "attempts": 0, "cancelling": False, "events": 0, "created": clock.now()}
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
    """Return jobs without results, the newest first, of all owners if None is named; of an error without its fields.

    Either may have a mebibyte. Raise InvalidOption for a foreign cursor.
    """
    wanted = sa.select(*_LISTED).order_by(jobs.c.number.desc()).limit(limit + 1)
    for column, value in ((jobs.c.owner, owner), (jobs.c.state, state), (jobs.c.kind, kind), (jobs.c.model, model)):
        if value is not None:
            wanted = wanted.where(column == str(value))
    if cursor is not None:
        (number,) = cursors.read(cursor, int)
        wanted = wanted.where(jobs.c.number < number)
    rows = connection.execute(wanted).all()
    shown = tuple(_listed(row) for row in rows[:limit])
    return JobPage(shown, cursors.written(shown[-1].number) if len(rows) > limit else None)


def _listed(row: Row[Any]) -> JobRow:
    values = dict(row._mapping)
    error = {name: values.pop(f"error_{name}") for name in _ERROR}
    return _row({**values, "result": None, "error": {**error, "fields": {}} if error["code"] else None})


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
    """Return how many jobs wait for a server in all, and how many of this owner's.

    Those of a disabled owner wait for that to end, and take no place from others.
    """
    mine = sa.func.coalesce(sa.func.sum(sa.case((jobs.c.owner == owner, 1), else_=0)), 0)
    stopped = sa.select(owners.c.id).where(owners.c.disabled.is_not(None))
    in_turn = sa.func.coalesce(sa.func.sum(sa.case((jobs.c.owner.in_(stopped), 0), else_=1)), 0)
    row = connection.execute(sa.select(in_turn, mine).where(jobs.c.state == State.QUEUED)).one()
    return int(row[0]), int(row[1])


def waiting_needs(connection: Connection) -> set[tuple[str, JobKind]]:
    """Return what jobs that wait need of a machine, by key, and of which kind they are."""
    waiting = sa.select(jobs.c.needs_key, jobs.c.kind).where(jobs.c.state == State.QUEUED).distinct()
    return {(row.needs_key, JobKind(row.kind)) for row in connection.execute(waiting)}


def needs_of(connection: Connection, key: str) -> dict[str, Any] | None:
    """Return the needs that a job which waits has under this key; None where none has any."""
    waiting = sa.select(jobs.c.needs).where(jobs.c.state == State.QUEUED, jobs.c.needs_key == key)
    return connection.execute(waiting.limit(1)).scalar_one_or_none()


def running_on(connection: Connection, instance: str) -> dict[Claim, bool]:
    """Return the claims that this server has on jobs that run, and whether these are to be cancelled."""
    mine = sa.select(jobs.c.id, jobs.c.epoch, jobs.c.cancelling)
    rows = connection.execute(mine.where(jobs.c.state == State.RUNNING, jobs.c.instance == instance))
    return {(row.id, row.epoch): row.cancelling for row in rows}
