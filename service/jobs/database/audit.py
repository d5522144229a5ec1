"""The audit log: one row for each call that changed something, or tried to with a valid key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from relaxc.service.jobs.database import cursors
from relaxc.service.jobs.database.rows import AuditFilter, AuditPage, AuditRow
from relaxc.service.jobs.database.tables import audit_log

__all__ = ["append", "newest", "page", "read"]

_ORDER = (audit_log.c.time, audit_log.c.number)
"""An order of all rows that there are; who adds a row with an older time, from another server, adds it in between."""


def append(connection: Connection, rows: Sequence[AuditRow]) -> None:
    """Add `rows`, in order. A NUL, which PostgreSQL takes in no text, is kept as U+FFFD: a path is its sender's."""
    if rows:
        connection.execute(sa.insert(audit_log), [_storable(row) for row in rows])


def newest(connection: Connection, limit: int, *, key: str | None = None) -> list[AuditRow]:
    """Return rows, the newest first; only those of one key where it is named."""
    return list(page(connection, AuditFilter(key=key), limit, None).rows)


def page(connection: Connection, wanted: AuditFilter, limit: int, cursor: str | None) -> AuditPage:
    """Return the rows that are wanted, the newest first. Raise InvalidOption for a foreign cursor."""
    rows = _matching(wanted).order_by(*(column.desc() for column in _ORDER)).limit(limit + 1)
    if cursor is not None:
        rows = rows.where(sa.tuple_(*_ORDER) < sa.tuple_(*cursors.read(cursor, float, int)))
    found = connection.execute(rows).all()
    shown = found[:limit]
    more = len(found) > limit
    return AuditPage(tuple(map(_row, shown)), cursors.written(*_key(shown[-1])) if more else None)


def read(
    connection: Connection, wanted: AuditFilter, limit: int, after: tuple[float, int] | None
) -> tuple[list[AuditRow], tuple[float, int] | None]:
    """Return the rows that are wanted, the oldest first, from `after` on, and where to go on; None at the end."""
    rows = _matching(wanted).order_by(*_ORDER).limit(limit)
    rows = rows if after is None else rows.where(sa.tuple_(*_ORDER) > sa.tuple_(*after))
    found = connection.execute(rows).all()
    return list(map(_row, found)), _key(found[-1]) if len(found) == limit else None


def _matching(wanted: AuditFilter) -> sa.Select[Any]:
    rows = sa.select(audit_log)
    for name in ("owner", "key", "action"):
        value = getattr(wanted, name)
        rows = rows if value is None else rows.where(audit_log.c[name] == value)
    rows = rows if wanted.since is None else rows.where(audit_log.c.time >= wanted.since)
    return rows if wanted.until is None else rows.where(audit_log.c.time < wanted.until)


def _storable(row: AuditRow) -> dict[str, Any]:
    values = asdict(row)
    return {name: value.replace("\0", "\ufffd") if isinstance(value, str) else value for name, value in values.items()}


def _key(row: Row[Any]) -> tuple[float, int]:
    return float(row.time), int(row.number)


def _row(row: Row[Any]) -> AuditRow:
    return AuditRow(**{name: value for name, value in row._mapping.items() if name != "number"})
