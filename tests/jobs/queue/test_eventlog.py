"""What a running job tells: in order, with progress thinned out, bounded, and silent once the job is another's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import events, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import EventRow
from relaxc.service.jobs.database.tables import jobs
from relaxc.service.jobs.queue import scheduler
from relaxc.service.jobs.queue.eventlog import EventLog
from tests.jobs.conftest import OpenBackend
from tests.jobs.queue.test_desk import ANN, asks, end_of
from tests.jobs.rows import claim, find, put


def started(database: Database) -> EventLog:
    put(database)
    job = claim(database)
    assert job is not None
    return EventLog(database, job)


def stored(database: Database, log: EventLog) -> tuple[EventRow, ...]:
    with database.read() as connection:
        return events.read(connection, log._job.id, 0, 100_000)


def test_stages_are_written_with_the_row(database: Database) -> None:
    log = started(database)
    assert not log.take({"event": "stage", "stage": "import", "state": "start"})
    assert log.flush()
    assert find(database, log._job.id).stage == "import"
    log.take({"event": "progress", "stage": "import", "done": 3, "total": 28})
    log.flush()
    assert find(database, log._job.id).progress == (3, 28)
    log.take({"event": "stage", "stage": "build", "state": "start"})
    log.flush()
    assert (find(database, log._job.id).stage, find(database, log._job.id).progress) == ("build", None)
    assert [row.data.get("stage") for row in stored(database, log)[1:]] == ["import", "import", "build"]


def test_the_stages_of_a_compile_are_few_transactions_in_order(open_backend: OpenBackend) -> None:
    """Fourteen events: its beginning, what it tells at once, its end."""
    backend = open_backend()
    request = asks(backend, "stages")
    with writes(backend.database) as transactions:
        id = end_of(backend, ANN, backend.jobs.submit(ANN, request).job.id).id
    assert len(transactions) <= 5
    told = [row.data for row in backend.jobs.events(ANN, id)]
    assert [(data.get("stage"), data["state"]) for data in told][1:13] == [
        (stage, state)
        for stage in ("import", "optimize", "schedule", "build", "verify", "pack")
        for state in ("start", "done")
    ]
    assert scheduler._FLUSH_S <= 0.1  # a listener hears of an event within 0.2 s


@contextmanager
def writes(database: Database) -> Iterator[list[int]]:
    """How many events each transaction writes that writes some."""
    found: list[int] = []

    def executed(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO job_events"):
            connection.info["events"] = connection.info.get("events", 0) + max(1, cursor.rowcount)

    def committed(connection: Any) -> None:
        if written := connection.info.pop("events", 0):
            found.append(written)

    sa.event.listen(database.engine, "after_cursor_execute", executed)
    sa.event.listen(database.engine, "commit", committed)
    yield found


def test_what_could_not_be_written_is_written_later_and_in_order(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = started(database)
    log.take({"event": "stage", "stage": "import", "state": "start"})
    with monkeypatch.context() as then:
        then.setattr(events, "append", lambda *_, **__: fail())
        assert not log.flush()
    log.take({"event": "stage", "stage": "build", "state": "start"})
    with pytest.raises(KeyError), log.taken() as pending, database.begin() as connection:
        pending.write(connection)
        raise KeyError("what comes after it in the transaction")
    assert [row.data.get("stage") for row in stored(database, log)[1:]] == []
    assert log.flush()
    assert [row.data.get("stage") for row in stored(database, log)[1:]] == ["import", "build"]
    assert find(database, log._job.id).stage == "build"


def fail() -> bool:
    raise ServiceError("the database does not answer")


def test_who_tells_does_not_wait_for_the_disk(database: Database) -> None:
    log = started(database)
    with database.begin() as connection:  # SQLite's only writer; a lock on the job's row elsewhere
        connection.execute(sa.update(jobs).where(jobs.c.id == log._job.id).values(priority=1))
        for i in range(100):
            log.take({"event": "stage", "stage": str(i), "state": "start"})
    assert log.flush()
    assert find(database, log._job.id).stage == "99"


def test_progress_is_thinned_out_and_nothing_else(database: Database) -> None:
    log = started(database)
    for i in range(1000):
        log.take({"event": "progress", "stage": "tune", "done": i, "total": 1000})
        if i % 100 == 0:
            log.take({"event": "log", "level": "info", "message": str(i)})
    log.flush()
    rows = stored(database, log)
    kinds = Counter(row.data["event"] for row in rows)
    assert kinds["log"] == 10
    assert kinds["progress"] < 100
    assert rows[-1].data == {"event": "progress", "stage": "tune", "done": 999, "total": 1000}
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))


def test_a_job_that_tells_too_much_is_cut_off(database: Database) -> None:
    log = started(database)
    for i in range(10_500):
        log.take({"event": "log", "level": "info", "message": str(i)})
    log.take({"event": "log", "message": "x" * 100_000})
    log.flush()
    rows = stored(database, log)
    assert len(rows) == 10_000 + 1
    assert "too much" in rows[-1].data["message"]


def test_what_a_child_says_about_itself_is_bounded(database: Database) -> None:
    log = started(database)
    log.take({"event": "stage", "stage": "\0" + "x" * 1000, "state": "start"})
    log.take({"event": "progress", "stage": "x", "done": 10**30, "total": 10**30})
    log.take({"event": "progress", "stage": "x", "done": -1, "total": float("nan")})
    assert log.flush()
    row = find(database, log._job.id)
    assert row.stage == "x" * 64
    assert row.progress is None


def test_half_a_surrogate_does_not_stay_in_the_way_of_what_follows(database: Database) -> None:
    log = started(database)
    for stage in ("a\ud800", "build"):
        log.take({"event": "stage", "stage": stage, "state": "start"})
        assert log.flush()
    assert [row.data.get("stage") for row in stored(database, log)[1:]] == ["a\N{REPLACEMENT CHARACTER}", "build"]


def test_an_attempt_that_is_over_writes_nothing(database: Database) -> None:
    log = started(database)
    with database.begin() as connection:
        transitions.give_back(connection, log._job)
    log.take({"event": "stage", "stage": "import", "state": "start"})
    assert not log.flush()
    assert log.lost
    assert [row.data["state"] for row in stored(database, log)] == ["running", "queued"]
