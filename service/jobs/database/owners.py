"""Owners: whose everything is. Keys come and go; their owner stays."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database.rows import iso_time
from relaxc.service.jobs.database.tables import owners

__all__ = ["OwnerRow", "every", "find", "insert", "named", "update"]


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """Whose models and jobs there are: a person, a team, a program. Its keys are ways to ask in its name.

    `webhook_secret` signs what is sent to its webhooks; none of its keys is served while it is `disabled`.
    """

    id: str
    name: str
    weight: float
    quotas: dict[str, Any]
    webhook_secret: str
    created: float
    disabled: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the owner as JSON, without what is secret."""
        return {
            "id": self.id,
            "name": self.name,
            "weight": self.weight,
            "created": iso_time(self.created),
            "disabled": iso_time(self.disabled),
        }


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
