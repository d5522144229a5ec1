"""The audit log: one row for each call that changed something, or tried to with a valid key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.jobs.database.rows import AuditRow
from service.jobs.database.tables import audit_log

__all__ = ["append", "newest"]


def append(connection: Connection, rows: Sequence[AuditRow]) -> None:
    """Add `rows`, in order."""
    if rows:
        connection.execute(sa.insert(audit_log), [asdict(row) for row in rows])


def newest(connection: Connection, limit: int, *, key: str | None = None) -> list[AuditRow]:
    """Return rows, the newest first; only those of one key where it is named."""
    wanted = sa.select(audit_log).order_by(audit_log.c.number.desc()).limit(limit)
    wanted = wanted if key is None else wanted.where(audit_log.c.key == key)
    found = connection.execute(wanted).mappings()
    return [AuditRow(**{name: value for name, value in row.items() if name != "number"}) for row in found]
