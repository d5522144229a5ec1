"""Who has had which artifact made."""

from __future__ import annotations

import time

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.jobs.database import uses
from service.jobs.database.tables import artifacts

__all__ = ["has", "own"]


def own(connection: Connection, owner: str, digest: str) -> None:
    """Let `owner` fetch it from now on."""
    now = time.time()
    uses.insert_or_touch(connection, artifacts, owner, digest, created=now, used=now)


def has(connection: Connection, owner: str | None, digest: str) -> bool:
    """Return whether `owner`, or anybody where None is named, has had it made."""
    wanted = sa.select(sa.literal(1)).where(artifacts.c.digest == digest).limit(1)
    wanted = wanted if owner is None else wanted.where(artifacts.c.owner == owner)
    return connection.scalar(wanted) is not None
