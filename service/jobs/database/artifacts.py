"""Who has had which artifact made."""

from __future__ import annotations

import time

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.jobs.database.tables import artifacts
from service.jobs.database.upsert import insert_new

__all__ = ["has", "own"]


def own(connection: Connection, owner: str, digest: str) -> None:
    """Let `owner` fetch it from now on."""
    insert_new(connection, artifacts, owner=owner, digest=digest, created=time.time())


def has(connection: Connection, owner: str | None, digest: str) -> bool:
    """Return whether `owner`, or anybody where None is named, has had it made."""
    wanted = sa.select(sa.literal(1)).where(artifacts.c.digest == digest).limit(1)
    wanted = wanted if owner is None else wanted.where(artifacts.c.owner == owner)
    return connection.scalar(wanted) is not None
