"""The audit log's thread outlives its database's failures, and its close ends whatever the database does."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from relaxc.service.api import audit as module
from relaxc.service.api.audit import AuditLog
from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import audit
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import AuditRow
from relaxc.service.jobs.database.tables import audit_log
from tests.waiting import PATIENCE_S


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'service.sqlite3'}")


def row(number: int) -> AuditRow:
    return AuditRow(time.time(), "k_a", "POST /v1/jobs", str(number), "202", "127.0.0.1", {})


def objects(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.scalars(sa.select(audit_log.c.object).order_by(audit_log.c.number)))


@pytest.mark.parametrize("failure", [ServiceError("it does not answer"), MemoryError("a bug")])
def test_it_goes_on_after_a_failure(database: Database, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.02)
    append, failures = audit.append, iter([failure])

    def fails_once(*given: object) -> None:
        for each in failures:
            raise each
        append(*given)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(audit, "append", fails_once)
    log = AuditLog(database)
    log.add(row(1))
    deadline = time.monotonic() + PATIENCE_S
    while next(failures, None) is not None:
        assert time.monotonic() < deadline
    log.add(row(2))
    log.close()
    assert objects(database)[-1] == "2"
    assert not log._thread.is_alive()
    database.close()


@pytest.mark.parametrize("answers", [True, False])
def test_a_full_queue_does_not_hold_up_the_end(
    database: Database, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 2)
    append, reached, go = audit.append, threading.Event(), threading.Event()

    def slow(*given: object) -> None:
        reached.set()
        go.wait(30)
        if not answers:
            raise ServiceError("it does not answer")
        append(*given)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(audit, "append", slow)
    log = AuditLog(database)
    log.add(row(0))
    assert reached.wait(30)
    for number in range(1, 6):
        log.add(row(number))
    closing = threading.Thread(target=log.close)
    closing.start()
    go.set()
    closing.join(30)
    assert not closing.is_alive()
    assert not log._thread.is_alive()
    assert objects(database) == (["0", "1", "2"] if answers else [])
    database.close()


def test_a_database_that_hangs_does_not_hold_up_the_end(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 0.1)
    go = threading.Event()
    monkeypatch.setattr(audit, "append", lambda *given: go.wait(30))
    log = AuditLog(database)
    log.add(row(1))
    log.close()
    assert log._thread.is_alive()
    go.set()
    log._thread.join(30)
    database.close()
