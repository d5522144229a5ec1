"""The state machine in SQL: what moves a job, what cannot, whose turn it is, and what a dead server's jobs become."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import sqlalchemy as sa

from relaxc.service.errors import Cancelled, CompileFailed
from relaxc.service.jobs.database import claims, events, instances, jobs, quotas, records, transitions, uses
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import JobKind, RecordsRow
from relaxc.service.jobs.database.tables import record_sets
from relaxc.service.jobs.job import State
from tests.jobs.at_once import at_once
from tests.jobs.rows import claim, find, put, put_row
from tests.waiting import PATIENCE_S, until


def told(database: Database, id: str) -> list[str]:
    """The states that the job has told, in order."""
    with database.read() as connection:
        rows = events.read(connection, id, 0, 100)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [row.data["state"] for row in rows]


def test_a_job_runs_and_ends_once(database: Database) -> None:
    put(database)
    job = claim(database)
    assert job is not None
    assert (job.state, job.attempts, job.instance) == (State.RUNNING, 1, "i1")
    with database.begin() as connection:
        ended = transitions.end(connection, job, Outcome(artifact="a" * 64))
        assert ended is not None
        assert (ended.state, ended.artifact, ended.instance) == (State.SUCCEEDED, "a" * 64, None)
    with database.begin() as connection:
        assert transitions.end(connection, job, Outcome(error=CompileFailed("late"))) is None
        assert transitions.stop(connection, job.id, Cancelled("late")) is None
        assert not transitions.give_back(connection, job)
    assert find(database, job.id).state is State.SUCCEEDED
    assert told(database, job.id) == ["running", "succeeded"]
    assert claim(database) is None


def test_an_error_is_kept_whole(database: Database) -> None:
    put(database)
    job = claim(database)
    assert job is not None
    error = CompileFailed("it broke", stage="build", nodes=["n1"])
    with database.begin() as connection:
        transitions.end(connection, job, Outcome(error=error))
    row = find(database, job.id)
    assert row.state is State.FAILED
    assert row.error == error.to_dict()
    assert row.error["node"] == "n1"


def test_a_queued_job_is_cancelled_at_once_and_a_running_one_is_marked(database: Database) -> None:
    queued, first = put(database, owner="k_b"), put(database, priority=9)
    running = claim(database, limit=1)
    assert running is not None
    waiting = queued if running.id == first.id else first
    with database.begin() as connection:
        assert transitions.stop(connection, waiting.id, Cancelled("no")) is State.QUEUED
        assert transitions.stop(connection, running.id, Cancelled("no")) is State.RUNNING
    assert find(database, waiting.id).state is State.CANCELLED
    assert find(database, running.id).cancelling
    with database.read() as connection:
        assert jobs.running_on(connection, "i1") == {(running.id, 1): True}


def test_equal_requests_of_one_owner_share_one_live_job(database: Database) -> None:
    key = "f" * 64
    first = put(database, request_key=key)
    assert put_row(database, request_key=key) is None
    assert put_row(database, request_key=key, owner="k_b") is not None
    job = claim(database)
    assert job is not None
    assert put_row(database, request_key=key) is None
    with database.begin() as connection:
        transitions.end(connection, find(database, first.id) if job.id == first.id else job, Outcome(artifact="a" * 64))


def test_the_same_request_of_another_owner_waits_for_the_first(database: Database) -> None:
    key = "f" * 64
    put(database, request_key=key)
    put(database, request_key=key, owner="k_b")
    job = claim(database)
    assert job is not None
    assert claim(database) is None
    with database.begin() as connection:
        transitions.end(connection, job, Outcome(artifact="a" * 64))
    second = claim(database)
    assert second is not None
    assert {job.owner, second.owner} == {"k_a", "k_b"}


def test_owners_take_turns_by_weight(database: Database) -> None:
    for _ in range(20):
        put(database, owner="k_a", weight=1.0)
        put(database, owner="k_b", weight=3.0)
    started = [claim(database) for _ in range(16)]
    counts = Counter(job.owner for job in started if job is not None)
    assert counts == {"k_a": 4, "k_b": 12}


def test_a_key_that_waits_does_not_wait_behind_anothers_hundred(database: Database) -> None:
    for _ in range(100):
        put(database, owner="k_a")
    for _ in range(10):
        assert claim(database) is not None
    put(database, owner="k_b")
    owners = [job.owner for job in (claim(database), claim(database)) if job is not None]
    assert "k_b" in owners


def test_a_key_that_was_idle_has_saved_nothing_up(database: Database) -> None:
    put(database, owner="k_b")
    assert claim(database) is not None
    for _ in range(60):
        put(database, owner="k_a")
    for _ in range(50):
        assert claim(database) is not None
    for _ in range(8):
        put(database, owner="k_b")
    owners = Counter(job.owner for job in (claim(database) for _ in range(8)) if job is not None)
    assert abs(owners["k_a"] - owners["k_b"]) <= 2


def test_long_jobs_count_for_more(database: Database) -> None:
    for owner in ("k_a", "k_b"):
        for _ in range(10):
            put(database, owner=owner)
    job = claim(database)
    assert job is not None
    with database.begin() as connection:
        from relaxc.service.jobs.database import shares

        shares.charge(connection, job.owner, 1.0, 5.0)
    owners = [job.owner for job in (claim(database) for _ in range(4)) if job is not None]
    assert owners.count(job.owner) == 0


def test_priority_orders_the_jobs_of_one_owner(database: Database) -> None:
    low, high, middle = (put(database, priority=priority) for priority in (-5, 5, 0))
    assert [claim(database).id for _ in range(3)] == [high.id, middle.id, low.id]  # type: ignore[union-attr]


def test_tuning_has_a_lane_of_its_own(database: Database) -> None:
    tuning, compiling = put(database, kind=JobKind.TUNE, priority=100), put(database)
    assert claim(database, lane=False).id == compiling.id  # type: ignore[union-attr]
    assert claim(database, lane=False) is None
    assert claim(database, lane=True).id == tuning.id  # type: ignore[union-attr]


def test_a_large_job_holds_up_its_lane_until_it_fits(database: Database) -> None:
    large = put(database, memory_bytes=100, priority=1)
    put(database, memory_bytes=1)
    assert claim(database, limit=50) is None
    assert claim(database, limit=100).id == large.id  # type: ignore[union-attr]


def test_many_servers_start_each_job_once(database: Database) -> None:
    for i in range(30):
        put(database, owner=f"k_{i % 3}")
    started: list[str] = []

    def work(instance: str) -> None:
        with database.begin() as connection:
            instances.register(connection, instance, instance, instance)
        while True:
            with database.begin() as connection:
                database.lock(connection, 3)
                claimed = claims.claim(connection, instance, False, lambda job: True)
            if claimed is None:
                return
            started.append(claimed[0].id)

    threads = [threading.Thread(target=work, args=(f"i{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == len(set(started)) == 30


def test_a_job_that_is_given_back_has_lost_no_attempt(database: Database) -> None:
    put(database)
    job = claim(database)
    assert job is not None
    with database.begin() as connection:
        assert transitions.give_back(connection, job)
    row = find(database, job.id)
    assert (row.state, row.attempts, row.instance, row.started) == (State.QUEUED, 0, None, None)
    assert told(database, job.id) == ["running", "queued"]


def test_a_job_that_is_given_back_while_it_is_cancelled_is_cancelled(database: Database) -> None:
    put(database)
    job = claim(database)
    assert job is not None
    with database.begin() as connection:
        assert transitions.stop(connection, job.id, Cancelled("no")) is State.RUNNING
    with database.begin() as connection:
        now = transitions.give_back(connection, job)
    assert now is not None
    assert now == find(database, job.id)
    assert (now.state, now.error["code"] if now.error else None) == (State.CANCELLED, "cancelled")
    assert told(database, job.id) == ["running", "cancelled"]
    with database.begin() as connection:
        assert transitions.give_back(connection, job) is None


def test_a_job_that_is_queued_again_while_it_is_stopped_is_stopped(database: Database) -> None:
    put(database)
    job = claim(database)
    assert job is not None
    found: list[State | None] = []

    def stop() -> None:
        with database.begin() as connection:
            found.append(transitions.stop(connection, job.id, Cancelled("no")))

    stopping = threading.Thread(target=stop)
    with database.begin() as connection:
        transitions.give_back(connection, job)
        stopping.start()
        stopping.join(0.5)  # in PostgreSQL it has read by then, and waits for this transaction
    stopping.join(30)
    assert found == [State.QUEUED]
    assert find(database, job.id).state is State.CANCELLED


@pytest.mark.parametrize("cancelling", [False, True])
def test_a_dead_servers_job_is_tried_once_more(database: Database, cancelling: bool) -> None:
    put(database)
    first = claim(database, instance="dead")
    assert first is not None
    with database.begin() as connection:
        if cancelling:
            transitions.stop(connection, first.id, Cancelled("no"))
        assert instances.bury(connection, ["dead"]) == [first.claim]
        row = transitions.recover(connection, first.claim)
    assert row is not None
    if cancelling:
        assert row.state is State.CANCELLED
        return
    assert (row.state, row.attempts) == (State.QUEUED, 1)
    second = claim(database, instance="dead too")
    assert second is not None
    with database.begin() as connection:
        assert transitions.end(connection, first, Outcome(artifact="a" * 64)) is None  # the first attempt has no say
        assert transitions.recover(connection, first.claim) is None
        row = transitions.recover(connection, second.claim)
    assert row is not None
    assert row.state is State.FAILED
    assert row.error is not None
    assert (row.error["code"], row.attempts) == ("server-died", 2)


def test_a_silent_server_is_dead_and_one_of_this_folder_when_its_lock_is_free(database: Database) -> None:
    with database.begin() as connection:
        for id, place in (("me", "here"), ("sibling", "here"), ("gone", "here"), ("far", "there")):
            instances.register(connection, id, place, id)
    with database.read() as connection:
        assert instances.dead(connection, "me", "here", 60.0, lambda workspace: workspace == "gone") == ["gone"]
        assert instances.dead(connection, "me", "here", -1.0, lambda workspace: False) == ["sibling", "gone", "far"]
    with database.begin() as connection:
        instances.bury(connection, ["far"])
        assert not instances.beat(connection, "far")
        assert instances.beat(connection, "me")


def test_a_tuning_ends_while_an_equal_one_is_asked_for_with_the_records_it_made(database: Database) -> None:
    """Who asks has the records locked and then the job; who ends has both, too."""
    made = RecordsRow("k_a", "r" * 64, "made", 1, 1, 0.0, 0.0, None)
    put(database, kind=JobKind.TUNE)
    job = claim(database, lane=True)
    assert job is not None
    with database.begin() as connection:
        records.insert(connection, made)
    asked = threading.Event()

    def work(number: int) -> None:
        if number:
            assert asked.wait(PATIENCE_S)
        with database.begin() as connection:
            if number:
                transitions.end(connection, job, Outcome(records=made))
                return
            quotas.hold(connection, "k_a")
            uses.touch(connection, record_sets, "k_a", made.digest)
            asked.set()
            until(lambda: database.is_sqlite or _waits(database))
            assert transitions.join(connection, job.id, 1) is not None

    assert at_once(2, work) == []
    assert find(database, job.id).state == "succeeded"


def _waits(database: Database) -> bool:
    with database.read() as connection:
        return bool(connection.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")))
