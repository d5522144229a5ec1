"""Webhook calls that are to be made, with what came of the last try."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.rows import JobRow
from relaxc.service.jobs.database.tables import deliveries

__all__ = [
    "MAX_JOINED",
    "Delivery",
    "delivered",
    "failed",
    "hold",
    "insert",
    "next_due",
    "owners_due",
    "take_due",
]

MAX_JOINED = 16
"""How many webhooks of equal requests a job has beside its own."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One call: `body` to `url`, for the owner's job; `attempts` counts this try."""

    id: int
    job: str
    owner: str
    url: str
    body: str
    attempts: int
    created: float


def insert(connection: Connection, job: JobRow) -> None:
    """Note that the end of `job` is to be told to its webhook, and to those of equal requests, at once."""
    body = json.dumps({"event": "job.done", "job": job.to_dict()}, separators=(",", ":"))
    if job.webhook is not None:
        _insert(connection, job, job.webhook, state="waiting", body=body)
    joined = sa.update(deliveries).where(deliveries.c.state == "held", deliveries.c.job == job.id)
    connection.execute(joined.values(state="waiting", body=body, created=clock.now(), due=clock.now()))


def hold(connection: Connection, job: JobRow, url: str) -> bool:
    """Have the end of `job`, whose row this transaction has locked, told to `url` too; return False if to too many."""
    held = set(
        connection.scalars(sa.select(deliveries.c.url).where(deliveries.c.state == "held", deliveries.c.job == job.id))
    )
    if url == job.webhook or url in held:
        return True
    if len(held) >= MAX_JOINED:
        return False
    _insert(connection, job, url, state="held", body="")
    return True


def owners_due(connection: Connection) -> dict[str, float]:
    """Who has deliveries that are due, and the Unix time since which."""
    due = sa.select(deliveries.c.owner, sa.func.min(deliveries.c.due).label("since"))
    due = due.where(deliveries.c.state == "waiting", deliveries.c.due <= clock.now()).group_by(deliveries.c.owner)
    return {row.owner: row.since for row in connection.execute(due)}


def take_due(connection: Connection, owner: str, hold_s: float) -> Delivery | None:
    """Return the owner's that is due the longest, kept from others for `hold_s` seconds; None when none is due."""
    due = sa.select(deliveries.c.id).where(
        deliveries.c.state == "waiting", deliveries.c.due <= clock.now(), deliveries.c.owner == owner
    )
    first = due.order_by(deliveries.c.due).limit(1).with_for_update(skip_locked=True)
    id = connection.scalar(first)
    if id is None:
        return None
    taken = sa.update(deliveries).where(deliveries.c.id == id)
    taken = taken.values(due=clock.now() + hold_s, attempts=deliveries.c.attempts + 1)
    row = connection.execute(taken.returning(deliveries)).one()
    return Delivery(row.id, row.job, row.owner, row.url, row.body, row.attempts, row.created)


def next_due(connection: Connection, without: Collection[str] = ()) -> float | None:
    """Return the Unix time at which the next delivery is due, those of some owners left out."""
    due: float | None = connection.scalar(
        sa.select(sa.func.min(deliveries.c.due)).where(
            deliveries.c.state == "waiting", deliveries.c.owner.not_in(without)
        )
    )
    return due


def delivered(connection: Connection, id: int) -> None:
    """Note that the receiver has it."""
    connection.execute(sa.update(deliveries).where(deliveries.c.id == id).values(state="delivered", last_error=None))


def failed(connection: Connection, id: int, why: str, due: float | None) -> None:
    """It did not arrive; it is tried again at the Unix time `due`, or never."""
    columns = {"state": "failed"} if due is None else {"due": due}
    connection.execute(sa.update(deliveries).where(deliveries.c.id == id).values(last_error=why[:500], **columns))


def _insert(connection: Connection, job: JobRow, url: str, **columns: str) -> None:
    row = {"job": job.id, "owner": job.owner, "url": url, "attempts": 0, "created": clock.now(), "due": clock.now()}
    connection.execute(sa.insert(deliveries).values(**row, **columns))
