"""Puts jobs into a database without anybody who runs them."""

from __future__ import annotations

import itertools
from typing import Any

from relaxc.service.jobs.database import claims, instances, jobs
from relaxc.service.jobs.database.claims import Candidate
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobKind, JobRow

__all__ = ["claim", "find", "insert", "put", "put_id", "put_row", "values_of"]

_NUMBERS = itertools.count()


def values_of(**columns: Any) -> dict[str, Any]:
    """The columns of a job of a request of its own, but for those that are given."""
    return {
        "kind": JobKind.COMPILE,
        "owner": "k_a",
        "name": "m.onnx",
        "target": {},
        "options": {},
        "extras": {},
        "priority": 0,
        "weight": 1.0,
        "memory_bytes": 1,
        "request_key": f"{next(_NUMBERS):064x}",
        **columns,
    }


def insert(database: Database, **columns: Any) -> str | None:
    """The id of a queued job, of a request of its own unless `request_key` is given. None where an equal one lives."""
    with database.begin() as connection:
        return jobs.insert(connection, **values_of(**columns))


def put_id(database: Database, **columns: Any) -> str:
    """The id of one of which there is no equal; the tables may be those of an earlier version."""
    id = insert(database, **columns)
    assert id is not None
    return id


def put_row(database: Database, **columns: Any) -> JobRow | None:
    """The job of `insert`."""
    id = insert(database, **columns)
    return None if id is None else find(database, id)


def put(database: Database, **columns: Any) -> JobRow:
    """The same, of which there is no equal one."""
    row = put_row(database, **columns)
    assert row is not None
    return row


def claim(database: Database, *, lane: bool = False, instance: str = "i1", limit: float = 1e9) -> JobRow | None:
    """The job whose turn it is, running on a server that there is now; None where there is none, or it takes more than
    `limit` bytes."""

    def fits(job: Candidate) -> bool:
        return job.memory_bytes <= limit

    with database.begin() as connection:
        if not instances.is_registered(connection, instance):
            instances.register(connection, instance, instance, instance)
        claimed = claims.claim(connection, instance, lane, fits)
    return None if claimed is None else claimed[0]


def find(database: Database, id: str) -> JobRow:
    """The job as it is now."""
    with database.read() as connection:
        return jobs.get(connection, id)
