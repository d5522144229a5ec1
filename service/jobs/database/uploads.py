"""Bytes that are on their way to be an owner's: an upload has its room from its first byte on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.config import settings
from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.rows import expires, iso_time
from relaxc.service.jobs.database.tables import uploads
from relaxc.service.jobs.database.upsert import insert_or_update

__all__ = [
    "REQUEST",
    "UploadRow",
    "find",
    "number_and_bytes",
    "of_owner",
    "of_requests",
    "put",
    "remove",
    "remove_old",
    "touch",
]

REQUEST = "request-"
"""How the names begin of uploads that are a request's body; the id of its server follows."""


@dataclass(frozen=True, slots=True)
class UploadRow:
    """An upload that is on its way, and has room for all its bytes; `touched` is when the last of them came."""

    sha256: str
    size_bytes: int
    touched: float

    def to_dict(self) -> dict[str, Any]:
        """Return the upload as JSON."""
        return {
            "sha256": self.sha256,
            "total": self.size_bytes,
            "touched": iso_time(self.touched),
            "expires": iso_time(expires(self.touched, settings().upload_expiry_s)),
            "links": {"self": f"/v1/uploads/{self.sha256}"},
        }


def put(connection: Connection, owner: str, name: str, size_bytes: int) -> None:
    """Note that so many bytes are on their way, or still are."""
    facts = {"size_bytes": size_bytes, "touched": clock.now()}
    insert_or_update(connection, uploads, ("owner", "name"), owner=owner, name=name, **facts)


def touch(connection: Connection, owner: str, name: str, touched: float) -> None:
    """Note when the last byte of an upload came, where it has room."""
    mine = uploads.c.owner == owner, uploads.c.name == name, uploads.c.touched < touched
    connection.execute(sa.update(uploads).where(*mine).values(touched=touched))


def find(connection: Connection, owner: str, name: str) -> int | None:
    """Return how many bytes the upload has room for; None where there is none of this name."""
    wanted = sa.select(uploads.c.size_bytes).where(uploads.c.owner == owner, uploads.c.name == name)
    return connection.scalar(wanted)


def of_owner(connection: Connection, owner: str, limit: int) -> list[UploadRow]:
    """Return what the owner may go on with, the newest first."""
    mine = sa.select(uploads).where(uploads.c.owner == owner, ~uploads.c.name.startswith(REQUEST))
    rows = connection.execute(mine.order_by(uploads.c.touched.desc(), uploads.c.name).limit(limit))
    return [UploadRow(row.name, row.size_bytes, row.touched) for row in rows]


def number_and_bytes(connection: Connection) -> tuple[int, int]:
    """Return how many uploads are on their way, of all owners, and how many bytes they have room for."""
    row = connection.execute(sa.select(sa.func.count(), sa.func.sum(uploads.c.size_bytes))).one()
    return int(row[0]), int(row[1] or 0)


def remove(connection: Connection, owner: str, name: str) -> None:
    """Forget an upload that has come, or will not."""
    connection.execute(sa.delete(uploads).where(uploads.c.owner == owner, uploads.c.name == name))


def of_requests(connection: Connection) -> list[tuple[str, str]]:
    """Return owner and name of those that a request's body has, which nobody can go on with."""
    named = uploads.c.name >= REQUEST[0]  # others are SHA-256 in hex
    rows = connection.execute(sa.select(uploads.c.owner, uploads.c.name).where(named))
    return [(row.owner, row.name) for row in rows]


def remove_old(connection: Connection, before: float) -> int:
    """Forget uploads that nobody has touched since then; return how many."""
    return connection.execute(sa.delete(uploads).where(uploads.c.touched < before)).rowcount
