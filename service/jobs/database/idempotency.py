"""Idempotency keys: which job one has made, and from which body; kept for a day."""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.jobs.database.tables import idempotency, jobs
from service.jobs.database.upsert import insert_new

__all__ = ["KEPT_S", "Answered", "find", "insert", "remove_old"]

KEPT_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What a key was used for: the body's digest, and the job that it made."""

    body: str
    job: str


def find(connection: Connection, owner: str, key: str) -> Answered | None:
    """Return what the owner used this key for in the last day."""
    fresh = idempotency.c.created > time.time() - KEPT_S
    wanted = sa.select(idempotency).where(idempotency.c.owner == owner, idempotency.c.key == key, fresh)
    row = connection.execute(wanted).one_or_none()
    return None if row is None else Answered(row.body, row.job)


def insert(connection: Connection, owner: str, key: str, body: str, job: str) -> bool:
    """Bind the key, anew where its job has been swept; return False when somebody was faster."""
    remove_old(connection)
    swept = ~sa.exists().where(jobs.c.id == idempotency.c.job)
    mine = idempotency.c.owner == owner, idempotency.c.key == key
    connection.execute(sa.delete(idempotency).where(*mine, swept))
    return insert_new(connection, idempotency, owner=owner, key=key, body=body, job=job, created=time.time())


def remove_old(connection: Connection) -> None:
    """Forget keys of over a day ago."""
    connection.execute(sa.delete(idempotency).where(idempotency.c.created <= time.time() - KEPT_S))
