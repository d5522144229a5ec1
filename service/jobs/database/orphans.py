"""Which names of blobs the database knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.jobs.database.tables import jobs, model_contents, record_sets

__all__ = ["KINDS", "unknown"]

_COLUMNS = {
    "jobs": jobs.c.id,
    "models": sa.func.coalesce(model_contents.c.folder, model_contents.c.digest),
    "records": record_sets.c.digest,
}

KINDS = tuple(_COLUMNS)
"""The folders of blobs whose names are ids of rows."""

_BATCH = 500


def unknown(connection: Connection, kind: str, names: Sequence[str]) -> list[str]:
    """Those of `names` that no row has."""
    column = _COLUMNS[kind]
    known: set[str] = set()
    for batch in _batches(names):
        known.update(connection.scalars(sa.select(column).where(column.in_(batch))))
    return [name for name in names if name not in known]


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[i : i + _BATCH] for i in range(0, len(names), _BATCH))
