"""INSERT … ON CONFLICT, which both databases have and SQLAlchemy has once for each."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

__all__ = ["insert_new", "insert_or_update"]


def insert_new(connection: Connection, table: Table, **values: Any) -> bool:
    """Insert the row unless one with an equal key is there; return whether it did."""
    statement = _insert(connection)(table).values(**values).on_conflict_do_nothing()
    returned = statement.returning(*table.primary_key.columns)  # rowcount does not tell in PostgreSQL
    return connection.execute(returned).first() is not None


def insert_or_update(connection: Connection, table: Table, keys: tuple[str, ...], **values: Any) -> None:
    """Insert the row, or give the one with equal `keys` the other values."""
    changed = {name: value for name, value in values.items() if name not in keys}
    statement = _insert(connection)(table).values(**values)
    connection.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=changed))


def _insert(connection: Connection) -> Any:
    return sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
