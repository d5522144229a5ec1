"""Idempotency keys: which job one has made, and from which body; kept for RELAXC_IDEMPOTENCY_EXPIRY_S."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.config import settings
from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.tables import idempotency, jobs
from relaxc.service.jobs.database.upsert import insert_new

__all__ = ["Answered", "find", "insert"]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a key was used for: the body's digest, and the job that it made."""

    body: str
    job: str


def find(connection: Connection, owner: str, key: str) -> Answered | None:
    """Return what the owner used this key for lately."""
    fresh = idempotency.c.created > _oldest()
    wanted = sa.select(idempotency).where(idempotency.c.owner == owner, idempotency.c.key == key, fresh)
    row = connection.execute(wanted).one_or_none()
    return None if row is None else Answered(row.body, row.job)


def insert(connection: Connection, owner: str, key: str, body: str, job: str) -> bool:
    """Bind the key, anew where it is old or its job has been swept; return False when somebody was faster."""
    swept = ~sa.exists().where(jobs.c.id == idempotency.c.job)
    over = sa.or_(swept, idempotency.c.created <= _oldest())
    mine = idempotency.c.owner == owner, idempotency.c.key == key
    connection.execute(sa.delete(idempotency).where(*mine, over))
    return insert_new(connection, idempotency, owner=owner, key=key, body=body, job=job, created=clock.now())


def _oldest() -> float:
    return clock.now() - settings().idempotency_expiry_s
