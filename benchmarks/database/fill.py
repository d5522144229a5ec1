"""A database as it is after months: jobs that have ended, their events, the audit log; by rows, without any server."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from relaxc.service.jobs.database import instances, jobs
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.database.tables import audit_log, job_events
from relaxc.service.jobs.database.tables import jobs as jobs_table
from relaxc.service.jobs.job import State

__all__ = ["INSTANCE", "OWNERS", "Size", "fill"]

OWNERS = 10
INSTANCE = "benchmark"
_BATCH = 5000
_STAGES = ("import", "optimize", "schedule", "build", "verify", "pack")
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Size:
    """How many rows; events are shared out evenly."""

    jobs: int
    events: int
    audit: int


def fill(database: Database, size: Size) -> None:
    """Put in what is not there yet; every job ended 31 to 400 days ago."""
    with database.begin() as connection:
        if not instances.is_registered(connection, INSTANCE):
            instances.register(connection, INSTANCE, INSTANCE, INSTANCE)
        if connection.scalar(sa.select(sa.func.count()).select_from(jobs_table)):
            return
    draw = random.Random(1)
    each = max(1, size.events // size.jobs)
    ids = []
    for first in range(0, size.jobs, _BATCH):
        rows = [_job(number, each, draw) for number in range(first, min(first + _BATCH, size.jobs))]
        ids += [row["id"] for row in rows]
        _insert(database, jobs_table, rows)
    told = ({"job": id, "seq": seq, "time": 0.0, "data": _event(seq, each)} for id in ids for seq in range(1, each + 1))
    _insert_all(database, job_events, told)
    _insert_all(database, audit_log, (_audited(number) for number in range(size.audit)))
    if not database.is_sqlite:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("VACUUM ANALYZE"))


def _job(number: int, events: int, draw: random.Random) -> dict[str, Any]:
    finished = time.time() - draw.uniform(31, 400) * _DAY_S
    state = State.FAILED if draw.random() < 0.02 else State.SUCCEEDED
    error = dict.fromkeys(("node",)) | {"code": "compile-failed", "message": "x" * 200, "remedy": "Look."}
    return {
        "id": jobs.new_id(),
        "kind": JobKind.TUNE if draw.random() < 0.05 else JobKind.COMPILE,
        "owner": f"o_{number % OWNERS}",
        "state": state,
        "model": f"{number % 200:064x}",
        "name": f"model {number}.onnx",
        "target": {"name": "x86-64-v4"},
        "options": {"opt_level": 3, "shapes": {}},
        "extras": {},
        "priority": 0,
        "weight": 1.0,
        "memory_bytes": 1 << 30,
        "attempts": 1,
        "epoch": 1,
        "cancelling": False,
        "artifact": f"{number:064x}" if state is State.SUCCEEDED else None,
        "result": {"build": {"stages": dict.fromkeys(_STAGES, 1.25), "text": "x" * 2000}},
        "error": {**error, "fault": "compiler", "retryable": False, "fields": {}} if state is State.FAILED else None,
        "request_key": f"{number:064x}",
        "events": events,
        "created": finished - 20.0,
        "started": finished - 10.0,
        "finished": finished,
    }


def _event(seq: int, last: int) -> dict[str, Any]:
    if seq in (1, last):
        return {"event": "state", "state": "running" if seq == 1 else "succeeded"}
    stage = _STAGES[seq % len(_STAGES)]
    return {"event": "progress", "stage": stage, "done": seq, "total": last}


def _audited(number: int) -> dict[str, Any]:
    return {
        "time": time.time() - 400 * _DAY_S + number,  # rows come in the order of their times
        "owner": f"o_{number % OWNERS}",
        "key": f"k_{number % (3 * OWNERS)}",
        "action": "DELETE /v1/models/{digest}" if number % 50 == 0 else "POST /v1/jobs",
        "object": f"/v1/jobs/{number}",
        "outcome": "202",
        "address": "192.0.2.1",
        "detail": {"request": "0123456789abcdef", "bytes": 512},
    }


def _insert_all(database: Database, table: sa.Table, rows: Any) -> None:
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            _insert(database, table, batch)
            batch = []
    _insert(database, table, batch)


def _insert(database: Database, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        with database.begin() as connection:
            connection.execute(sa.insert(table), rows)
