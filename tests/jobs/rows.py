"""Puts jobs into a database without anybody who runs them."""

from __future__ import annotations

import itertools
from typing import Any

from service.jobs.database import jobs, transitions
from service.jobs.database.engine import Database
from service.jobs.database.rows import JobKind, JobRow
from service.jobs.database.transitions import Candidate

__all__ = ["claim", "find", "put", "put_row"]

_NUMBERS = itertools.count()


def put_row(database: Database, **columns: Any) -> JobRow | None:
    """A queued job; each has a request of its own unless `request_key` is given. None where an equal one lives."""
    values = {
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
    with database.begin() as connection:
        id = jobs.insert(connection, **values)
        return None if id is None else jobs.get(connection, id)


def put(database: Database, **columns: Any) -> JobRow:
    """The same, of which there is no equal one."""
    row = put_row(database, **columns)
    assert row is not None
    return row


def claim(database: Database, *, lane: bool = False, instance: str = "i1", limit: float = 1e9) -> JobRow | None:
    """The job whose turn it is, running; None where there is none, or it takes more than `limit` bytes."""

    def fits(job: Candidate) -> bool:
        return job.memory_bytes <= limit

    with database.begin() as connection:
        claimed = transitions.claim(connection, instance, lane, fits)
    return None if claimed is None else claimed[0]


def find(database: Database, id: str) -> JobRow:
    """The job as it is now."""
    with database.read() as connection:
        return jobs.get(connection, id)
