"""What a running job tells: in order, with progress thinned out, bounded, and silent once the job is another's."""

from __future__ import annotations

from collections import Counter

from service.jobs.database import events, transitions
from service.jobs.database.engine import Database
from service.jobs.database.rows import EventRow
from service.jobs.queue.eventlog import EventLog
from tests.jobs.rows import claim, find, put


def started(database: Database) -> EventLog:
    put(database)
    job = claim(database)
    assert job is not None
    return EventLog(database, job)


def stored(database: Database, log: EventLog) -> tuple[EventRow, ...]:
    with database.read() as connection:
        return events.read(connection, log._job.id, 0, 100_000)


def test_stages_are_written_at_once_with_the_row(database: Database) -> None:
    log = started(database)
    assert log.take({"event": "stage", "stage": "import", "state": "start"})
    assert find(database, log._job.id).stage == "import"
    log.take({"event": "progress", "stage": "import", "done": 3, "total": 28})
    log.flush()
    assert find(database, log._job.id).progress == (3, 28)
    log.take({"event": "stage", "stage": "build", "state": "start"})
    assert (find(database, log._job.id).stage, find(database, log._job.id).progress) == ("build", None)
    assert [row.data.get("stage") for row in stored(database, log)[1:]] == ["import", "import", "build"]


def test_progress_is_thinned_out_and_nothing_else(database: Database) -> None:
    log = started(database)
    writes = 0
    for i in range(1000):
        writes += log.take({"event": "progress", "stage": "tune", "done": i, "total": 1000})
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
    assert log.take({"event": "stage", "stage": "a\ud800", "state": "start"})
    assert log.take({"event": "stage", "stage": "build", "state": "start"})
    assert [row.data.get("stage") for row in stored(database, log)[1:]] == ["a\N{REPLACEMENT CHARACTER}", "build"]


def test_an_attempt_that_is_over_writes_nothing(database: Database) -> None:
    log = started(database)
    with database.begin() as connection:
        transitions.give_back(connection, log._job)
    assert not log.take({"event": "stage", "stage": "import", "state": "start"})
    assert log.lost
    assert [row.data["state"] for row in stored(database, log)] == ["running", "queued"]
