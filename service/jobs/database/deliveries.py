"""Webhook calls that are to be made, with what came of the last try."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.jobs.database.rows import JobRow
from service.jobs.database.tables import deliveries

__all__ = ["Delivery", "delivered", "failed", "insert", "next_due", "remove_old", "take_due"]


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
    """The end of `job` is to be told to its webhook, at once."""
    body = json.dumps({"event": "job.done", "job": job.to_dict()}, separators=(",", ":"))
    row = {"job": job.id, "owner": job.owner, "url": job.webhook, "body": body, "state": "waiting", "attempts": 0}
    connection.execute(sa.insert(deliveries).values(**row, created=time.time(), due=time.time()))


def take_due(connection: Connection, hold_s: float) -> Delivery | None:
    """The delivery that is due the longest, not to be taken by others for `hold_s` seconds; None when none is due."""
    due = sa.select(deliveries.c.id).where(deliveries.c.state == "waiting", deliveries.c.due <= time.time())
    first = due.order_by(deliveries.c.due).limit(1).with_for_update(skip_locked=True)
    id = connection.scalar(first)
    if id is None:
        return None
    taken = sa.update(deliveries).where(deliveries.c.id == id)
    taken = taken.values(due=time.time() + hold_s, attempts=deliveries.c.attempts + 1)
    row = connection.execute(taken.returning(deliveries)).one()
    return Delivery(row.id, row.job, row.owner, row.url, row.body, row.attempts, row.created)


def next_due(connection: Connection) -> float | None:
    """The Unix time at which the next delivery is due."""
    due: float | None = connection.scalar(
        sa.select(sa.func.min(deliveries.c.due)).where(deliveries.c.state == "waiting")
    )
    return due


def delivered(connection: Connection, id: int) -> None:
    """The receiver has it."""
    connection.execute(sa.update(deliveries).where(deliveries.c.id == id).values(state="delivered", last_error=None))


def failed(connection: Connection, id: int, why: str, due: float | None) -> None:
    """It did not arrive; it is tried again at the Unix time `due`, or never."""
    columns = {"state": "failed"} if due is None else {"due": due}
    connection.execute(sa.update(deliveries).where(deliveries.c.id == id).values(last_error=why[:500], **columns))


def remove_old(connection: Connection, before: float) -> None:
    """Removes those made before this time that are settled."""
    settled = sa.delete(deliveries).where(deliveries.c.state != "waiting", deliveries.c.created < before)
    connection.execute(settled)
