"""Who has had which artifact made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.config import settings
from relaxc.service.jobs.database import clock, uses
from relaxc.service.jobs.database.rows import expires, iso_time
from relaxc.service.jobs.database.tables import artifacts

__all__ = ["ArtifactRow", "disown", "growth", "has", "measure", "of_owner", "own", "sizes", "touch"]


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """An artifact that an owner has had made; its size is 0 where the store has it no more."""

    owner: str
    digest: str
    size_bytes: int
    created: float
    used: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "created": iso_time(self.created),
            "expires": iso_time(expires(self.used, settings().artifact_expiry_s)),
            "links": {"self": f"/v1/artifacts/{self.digest}"},
        }


def own(connection: Connection, owner: str, digest: str, size_bytes: int = 0) -> None:
    """Let `owner` fetch it from now on."""
    now = clock.now()
    if not uses.insert_or_touch(connection, artifacts, owner, digest, created=now, used=now, size_bytes=size_bytes):
        mine = artifacts.c.owner == owner, artifacts.c.digest == digest
        connection.execute(sa.update(artifacts).where(*mine, artifacts.c.size_bytes == 0).values(size_bytes=size_bytes))


def growth(connection: Connection, owner: str, digest: str, size_bytes: int) -> int:
    """Return how many bytes more the owner would have with it."""
    wanted = sa.select(artifacts.c.size_bytes).where(artifacts.c.owner == owner, artifacts.c.digest == digest)
    return size_bytes - (connection.scalar(wanted) or 0)


def has(connection: Connection, owner: str | None, digest: str) -> bool:
    """Return whether `owner`, or anybody where None is named, has had it made."""
    wanted = sa.select(sa.literal(1)).where(artifacts.c.digest == digest).limit(1)
    wanted = wanted if owner is None else wanted.where(artifacts.c.owner == owner)
    return connection.scalar(wanted) is not None


def of_owner(connection: Connection, owner: str | None, limit: int) -> list[ArtifactRow]:
    """Return the owner's artifacts, or everybody's where None is named, the newest first."""
    wanted = sa.select(artifacts).order_by(artifacts.c.created.desc(), artifacts.c.digest).limit(limit)
    wanted = wanted if owner is None else wanted.where(artifacts.c.owner == owner)
    return [ArtifactRow(**row._mapping) for row in connection.execute(wanted)]


def touch(connection: Connection, owner: str | None, digest: str, older_than_s: float) -> None:
    """Note that it is used now, unless that was noted less than so long ago."""
    uses.touch(connection, artifacts, owner, digest, older_than_s=older_than_s)


def disown(connection: Connection, owner: str | None, digest: str) -> bool:
    """Take it from the owner, or from everybody where None is named; return False when nobody of them had it."""
    gone = sa.delete(artifacts).where(artifacts.c.digest == digest)
    return connection.execute(gone if owner is None else gone.where(artifacts.c.owner == owner)).rowcount > 0


def sizes(connection: Connection, *, after: str, most: int) -> dict[str, tuple[int, int]]:
    """Return the least and the largest size that is noted of artifacts, 0 for one that no store had: of at most `most`
    that somebody has, in the order of their digests, after this one."""
    size = artifacts.c.size_bytes
    wanted = sa.select(artifacts.c.digest, sa.func.min(size), sa.func.max(size)).group_by(artifacts.c.digest)
    page = wanted.where(artifacts.c.digest > after).order_by(artifacts.c.digest).limit(most)
    return {digest: (least, largest) for digest, least, largest in connection.execute(page)}


def measure(connection: Connection, digest: str, size_bytes: int) -> None:
    """Note how large it is, whoever has it."""
    connection.execute(sa.update(artifacts).where(artifacts.c.digest == digest).values(size_bytes=size_bytes))
