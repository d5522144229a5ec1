"""Every query of the service finds its rows by an index, however many there are of others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.errors import Cancelled, StorageQuotaExceeded
from relaxc.service.jobs.database import (
    artifacts,
    audit,
    deliveries,
    events,
    expired,
    idempotency,
    instances,
    job_logs,
    jobs,
    models,
    orphans,
    placed,
    quotas,
    records,
    tables,
    transitions,
    trials,
    tuning_times,
    uploads,
    uses,
)
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import AuditFilter, AuditRow, JobKind, ModelFile, ModelRow, RecordsRow
from relaxc.service.jobs.job import State
from relaxc.service.request import ModelFormat
from relaxc.service.tuning.told import Told
from tests.jobs.rows import claim, find, put

GROWING = (
    *("artifacts", "audit_log", "deliveries", "idempotency", "job_events", "job_logs", "job_trials", "jobs"),
    *("model_aliases", "model_contents", "model_files", "models", "record_sets", "tuning_times", "uploads"),
)
"""Tables whose size others decide; there are few servers, owners and keys."""

WHOLE = {
    "ORDER BY jobs.number DESC": "an admin's page of all jobs: the newest are the first of the primary key",
    "ORDER BY audit_log.time": "a page of all of the audit log, or of a time, from one end of its index",
    "ORDER BY models.created DESC": "an admin's thousand newest, by an index that has all",
    "ORDER BY record_sets.created DESC": "the same",
    "ORDER BY artifacts.created DESC": "the same",
    "FROM model_contents \nWHERE NOT": "models that nobody has, which no index knows: one look in ten minutes",
    "SELECT DISTINCT job_trials.job": "trials are of tunings that run, or have just ended",
    "count(*) AS count_1 \nFROM model_aliases": "none is made any more",
}
"""What reads a growing table from one end, by a part of its text, and why it may."""

NOW = 1e9
DIGEST = "a" * 64


@pytest.fixture
def filled(database: Database) -> Database:
    """Some jobs that live, more that have ended. PostgreSQL's autovacuum makes statistics; SQLite's nobody does."""
    for number in range(20):
        put(database, model=f"{number:064x}", owner=f"k_{number % 3}", kind=JobKind.TUNE if number % 2 else "compile")
    with database.begin() as connection:
        ended = [{"state": State.SUCCEEDED, "id": jobs.new_id(), "owner": f"k_{i % 3}"} for i in range(500)]
        row = dict(connection.execute(sa.select(tables.jobs).limit(1)).mappings().one())
        rows = [{**row, **each, "finished": NOW, "number": 100 + i} for i, each in enumerate(ended)]
        connection.execute(sa.insert(tables.jobs), rows)
        audit.append(connection, [AuditRow(NOW - i, "k_1", "POST", "", "200", "", {}, "o_1") for i in range(500)])
        if not database.is_sqlite:
            connection.execute(sa.text("ANALYZE"))
    return database


def pages(connection: Connection) -> None:
    first = jobs.page(connection, None, state=None, kind=None, model=None, limit=2, cursor=None)
    for owner in (None, "k_1"):
        for state in (None, State.FAILED):
            for kind in (None, JobKind.TUNE):
                for model in (None, DIGEST):
                    for cursor in (None, first.next):
                        wanted = {"state": state, "kind": kind, "model": model, "limit": 50, "cursor": cursor}
                        jobs.page(connection, owner, **wanted)
        artifacts.of_owner(connection, owner, 1000)
        artifacts.disown(connection, owner, DIGEST)
        records.remove(connection, owner, DIGEST)
        models.owned(connection, owner, 1000)
        records.owned(connection, owner, 1000)


def lookups(connection: Connection) -> None:
    for owner in (None, "k_1"):
        jobs.find(connection, "j_x", owner)
        models.find(connection, owner, DIGEST)
        models.aliases(connection, owner, DIGEST)
        records.find(connection, owner, DIGEST)
        artifacts.has(connection, owner, DIGEST)
        models.remove(connection, owner, DIGEST)
        for table in uses.OWNED:
            uses.touch(connection, table, owner, DIGEST, older_than_s=60.0)
    jobs.find_live(connection, "k_1", DIGEST)
    models.content(connection, DIGEST)
    models.unused(connection)
    models.remove_unused(connection, DIGEST)
    uses.needed(connection)
    for kind in orphans.KINDS:
        orphans.unknown(connection, kind, [DIGEST, "b" * 64])


def counts(connection: Connection) -> None:
    jobs.count(connection)
    jobs.depth(connection)
    jobs.waiting(connection, "k_1")
    quotas.use(connection, "k_1")
    quotas.admit_bytes(connection, "k_1", quotas.Quotas(1, 1, 1e12, 1), 1)
    jobs.waiting_needs(connection)
    jobs.needs_of(connection, DIGEST)
    placed.ids(connection, DIGEST, JobKind.TUNE)
    placed.marked(connection)
    placed.counts(connection)
    placed.marked(connection, "j_x")
    placed.waiting_since(connection, NOW)
    instances.every(connection)
    jobs.running_on(connection, "i1")
    instances.suspicious(connection, "i1", "here", 20.0)
    instances.bury(connection, ["i9"])


def made(connection: Connection) -> None:
    row = ModelRow("k_1", DIGEST, "m", ModelFormat.ONNX, 1, NOW, NOW, (ModelFile("model", 1, DIGEST),))
    for _ in range(2):
        models.insert(connection, row, DIGEST)
        records.insert(connection, RecordsRow("k_1", DIGEST, "r", 1, 1, NOW, NOW, None))
        artifacts.own(connection, "k_1", DIGEST)
        idempotency.insert(connection, "k_1", "x", DIGEST, "j_x")
        idempotency.find(connection, "k_1", "x")
        audit.append(connection, [AuditRow(NOW, "k_1", "POST", "", "200", "", {})])


def old(connection: Connection) -> None:
    expired.remove_jobs(connection, time.time() + 1, 10)
    expired.remove_audit(connection, NOW + 1, 10)
    expired.remove_deliveries(connection, NOW + 1, 10)
    expired.remove_idempotency(connection, time.time() + 1, 10)
    trials.remove(connection, "j_x", 10)
    trials.remove_old(connection, time.time() + 1, 10)
    for table in uses.OWNED:
        uses.remove_unused(connection, table, time.time() + 1, (), 10)


def log(connection: Connection) -> None:
    audit.append(connection, [AuditRow(NOW + i, "k_1", "POST", "", "200", "", {}, "o_1") for i in range(5)])
    filters = [AuditFilter(), AuditFilter(owner="o_1"), AuditFilter(key="k_1"), AuditFilter(action="POST")]
    for wanted in (*filters, AuditFilter(since=NOW, until=NOW + 3), AuditFilter(since=NOW, key="k_1")):
        cursor = audit.page(connection, wanted, 2, None).next
        audit.page(connection, wanted, 2, cursor)
        _, after = audit.read(connection, wanted, 2, None)
        audit.read(connection, wanted, 2, after)


def allowed(connection: Connection) -> None:
    held = replace(quotas.hold(connection, "k_1"), bytes=0)
    quotas.use(connection, "k_1")
    with suppress(StorageQuotaExceeded):
        quotas.admit_bytes(connection, "k_1", held, 1)
    quotas.admit_tuning(connection, "k_1", held, 1.0)
    tuning_times.wait_s(connection, "k_1", 1.0)
    tuning_times.remove_old(connection, NOW, 10)
    uploads.put(connection, "k_1", "x", 1)
    uploads.touch(connection, "k_1", "x", NOW)
    uploads.remove(connection, "k_1", "x")
    uploads.remove_old(connection, NOW)
    uploads.of_requests(connection)
    uploads.of_owner(connection, "k_1", 10)
    artifacts.growth(connection, "k_1", DIGEST, 1)
    artifacts.sizes(connection, after=DIGEST, most=10)
    artifacts.measure(connection, DIGEST, 1)
    for owner in (None, "k_1"):
        artifacts.of_owner(connection, owner, 1000)
        artifacts.disown(connection, owner, DIGEST)
        records.remove(connection, owner, DIGEST)


def calls(connection: Connection) -> None:
    deliveries.owners_due(connection)
    deliveries.take_due(connection, "k_1", 1.0)
    deliveries.next_due(connection, ("k_2",))
    deliveries.delivered(connection, 1)
    deliveries.failed(connection, 1, "why", None)


@pytest.mark.parametrize(
    "queries", [pages, lookups, counts, made, old, log, allowed, calls], ids=lambda query: query.__name__
)
def test_queries_read_no_table_that_grows(filled: Database, queries: Callable[[Connection], None]) -> None:
    with plans(filled) as scans, filled.begin() as connection:
        queries(connection)
    assert scans == []


def test_the_life_of_a_job_reads_no_table_that_grows(filled: Database) -> None:
    with plans(filled) as scans:
        job = claim(filled)
        assert job is not None
        held = transitions.held(job.claim)
        with filled.begin() as connection:
            events.append(connection, job.id, [(NOW, {"event": "log"})], *held, stage="build")
            trials.append(connection, job.id, [Told("0123456789abcdef", "elapsed", 1.0)], *held)
            trials.read(connection, job.id)
            trials.of_ended(connection)
            events.read(connection, job.id, 1, 100)
            events.counts(connection, [job.id])
            job_logs.append(connection, job, 0, b"line")
            job_logs.read(connection, job.id)
            joined = transitions.join(connection, job.id, 5)
            assert joined is not None
            deliveries.hold(connection, joined, "http://example.com")
            transitions.give_back(connection, job)
        again = claim(filled)
        assert again is not None
        with filled.begin() as connection:
            transitions.stop(connection, again.id, Cancelled("it was cancelled"))
            transitions.recover(connection, again.claim)
            transitions.end(connection, find(filled, again.id), Outcome(artifact=DIGEST))
    assert scans == []


@contextmanager
def plans(database: Database) -> Iterator[list[str]]:
    """What reads a whole table that grows, or a whole index of one, or sorts one, that is not in WHOLE."""
    found: list[str] = []

    def explained(connection: Connection, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.startswith(("SELECT", "UPDATE", "DELETE")) or any(part in statement for part in WHOLE):
            return
        given = parameters[0] if isinstance(parameters, list) else parameters
        found.extend(f"{line}\n{statement}" for line in _whole(database, cursor, statement, given))

    sa.event.listen(database.engine, "before_cursor_execute", explained)
    yield found
    sa.event.remove(database.engine, "before_cursor_execute", explained)


def _whole(database: Database, cursor: Any, statement: str, parameters: Any) -> list[str]:
    with cursor.connection.cursor() if not database.is_sqlite else _closing(cursor.connection) as asked:
        if database.is_sqlite:
            lines = [row[3] for row in asked.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            return [line for line in lines if any(line.split()[:2] == ["SCAN", table] for table in GROWING)]
        asked.execute("SET LOCAL enable_seqscan = off")
        lines = [row[0] for row in asked.execute(f"EXPLAIN {statement}", parameters)]
        return [line for line in lines if any(f"Seq Scan on {table}" in line for table in GROWING)]


@contextmanager
def _closing(connection: Any) -> Iterator[Any]:
    cursor = connection.cursor()
    yield cursor
    cursor.close()


def test_every_table_is_said_to_grow_or_not() -> None:
    assert set(tables.metadata.tables) - set(GROWING) == {"api_keys", "instances", "owners", "shares"}
