"""Who has which record set."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from relaxc.service.jobs.database import quotas, uses
from relaxc.service.jobs.database.rows import RecordsRow
from relaxc.service.jobs.database.tables import record_sets

__all__ = ["admit", "find", "insert", "owned", "remove"]


def admit(connection: Connection, row: RecordsRow) -> None:
    """Hold the owner; raise StorageQuotaExceeded where the set is not its owner's yet, and does not fit."""
    allowed = quotas.hold(connection, row.owner)
    if find(connection, row.owner, row.digest) is None:
        quotas.admit_bytes(connection, row.owner, allowed, row.size_bytes)


def insert(connection: Connection, row: RecordsRow) -> bool:
    """Give `row.owner` the set; return False when it had it already."""
    return uses.insert_or_touch(connection, record_sets, **asdict(row))


def find(connection: Connection, owner: str | None, digest: str) -> RecordsRow | None:
    """Return the owner's record set, or anybody's where None is named."""
    wanted = sa.select(record_sets).where(record_sets.c.digest == digest).order_by(record_sets.c.created).limit(1)
    wanted = wanted if owner is None else wanted.where(record_sets.c.owner == owner)
    row = connection.execute(wanted).one_or_none()
    return None if row is None else _row(row)


def owned(connection: Connection, owner: str | None, limit: int) -> list[RecordsRow]:
    """Return the owner's record sets, or everybody's where None is named, the newest first."""
    wanted = sa.select(record_sets).order_by(record_sets.c.created.desc(), record_sets.c.digest).limit(limit)
    wanted = wanted if owner is None else wanted.where(record_sets.c.owner == owner)
    return [_row(row) for row in connection.execute(wanted)]


def remove(connection: Connection, owner: str | None, digest: str) -> bool:
    """Take it from the owner, or from everybody where None is named; return False when nobody of them had it."""
    gone = sa.delete(record_sets).where(record_sets.c.digest == digest)
    return connection.execute(gone if owner is None else gone.where(record_sets.c.owner == owner)).rowcount > 0


def _row(row: Row[Any]) -> RecordsRow:
    return RecordsRow(**row._mapping)
