"""Owners: whose everything is. Keys come and go; their owner stays."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.jobs.database.rows import OwnerRow
from service.jobs.database.tables import owners

__all__ = ["every", "find", "insert", "named", "update"]


def insert(connection: Connection, row: OwnerRow) -> None:
    """Add an owner."""
    connection.execute(sa.insert(owners).values(**asdict(row)))


def find(connection: Connection, id: str) -> OwnerRow | None:
    """Return the owner with this id."""
    row = connection.execute(sa.select(owners).where(owners.c.id == id)).one_or_none()
    return None if row is None else OwnerRow(**row._mapping)


def named(connection: Connection, name: str) -> list[OwnerRow]:
    """Return every owner of this name: a name may be given twice."""
    found = connection.execute(sa.select(owners).where(owners.c.name == name).order_by(owners.c.created))
    return [OwnerRow(**row._mapping) for row in found]


def every(connection: Connection) -> list[OwnerRow]:
    """Return every owner, the newest first."""
    found = connection.execute(sa.select(owners).order_by(owners.c.created.desc(), owners.c.id))
    return [OwnerRow(**row._mapping) for row in found]


def update(connection: Connection, id: str, **columns: Any) -> None:
    """Give the owner's row these values."""
    connection.execute(sa.update(owners).where(owners.c.id == id).values(**columns))
