"""Quotas over both databases: what counts, what is refused, and that no two requests at once have the same room."""

from __future__ import annotations

import math
import time

import pytest
import sqlalchemy as sa

from relaxc.service.errors import QuotaExceeded, StorageQuotaExceeded
from relaxc.service.jobs.database import (
    artifacts,
    instances,
    quotas,
    records,
    tables,
    transitions,
    tuning_times,
    uploads,
)
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.quotas import Quotas, Use
from relaxc.service.jobs.database.rows import JobKind, JobRow, RecordsRow
from relaxc.service.jobs.database.tables import jobs
from relaxc.service.jobs.job import State
from relaxc.service.jobs.objects.owners import Owners
from tests.jobs.at_once import at_once
from tests.jobs.database.before_0003 import put_model
from tests.jobs.rows import claim, find, put

ANN, HOUR_S = "k_ann", 3600.0


def allow(database: Database, owner: str = ANN, **own: float | str) -> None:
    """Quotas of the owner's own."""
    with database.begin() as connection:
        quotas.hold(connection, owner)
    Owners(database).change(owner, quotas=own)


def used(database: Database, owner: str = ANN) -> Use:
    """What it has."""
    with database.read() as connection:
        return quotas.use(connection, owner)


def admit(database: Database, size_bytes: int, owner: str = ANN) -> None:
    """Whether so many bytes more fit."""
    with database.begin() as connection:
        quotas.admit_bytes(connection, owner, quotas.hold(connection, owner), size_bytes)


def admit_tuning(database: Database, time_s: float, owner: str = ANN) -> None:
    """Whether a tuning of so many seconds fits."""
    with database.begin() as connection:
        quotas.admit_tuning(connection, owner, quotas.hold(connection, owner), time_s)


def test_an_owner_has_the_quotas_of_the_settings_but_for_its_own(database: Database) -> None:
    with database.read() as connection:
        assert quotas.quotas(connection, "k_local") == Quotas(math.inf, math.inf, math.inf, math.inf)
        default = quotas.quotas(connection, ANN)
    assert (default.queued_jobs, default.running_jobs) == (32, math.inf)
    allow(database, bytes=7, tuning_hours="unlimited", queued_jobs=0)
    with database.read() as connection:
        assert quotas.quotas(connection, ANN) == Quotas(0, math.inf, 7, math.inf)
    allow(database, bytes="default", queued_jobs="default")
    with database.read() as connection:
        assert quotas.quotas(connection, ANN) == Quotas(32, math.inf, default.bytes, math.inf)


def test_the_bytes_are_of_all_that_an_owner_refers_to_and_of_what_is_on_its_way(database: Database) -> None:
    put_model(database, "a" * 64, (ANN, "k_bob"), b"12345")  # its row says 1 byte
    with database.begin() as connection:
        artifacts.own(connection, ANN, "b" * 64, 10)
        artifacts.own(connection, ANN, "b" * 64, 10)
        artifacts.own(connection, "k_bob", "b" * 64, 10)
        records.insert(connection, RecordsRow(ANN, "c" * 64, "r", 1, 100, 1.0, 1.0, None))
        uploads.put(connection, ANN, "d" * 64, 1000)
    assert (used(database).bytes, used(database, "k_bob").bytes) == (1111, 11)
    allow(database, bytes=1112)
    admit(database, 1)
    admit(database, 0)
    with pytest.raises(StorageQuotaExceeded) as refused:
        admit(database, 2)
    assert refused.value.fields == {"quota": "bytes", "limit": 1112, "used": 1111, "asked": 2}
    admit(database, 2, "k_bob")
    with database.begin() as connection:
        assert artifacts.disown(connection, ANN, "b" * 64)
        assert records.remove(connection, ANN, "c" * 64)
        uploads.remove(connection, ANN, "d" * 64)
    assert used(database).bytes == 1


def test_of_uploads_at_once_no_more_are_admitted_than_fit(database: Database, database_url: str) -> None:
    other = Database(database_url)
    allow(database, bytes=50)

    def reserve(number: int) -> None:
        with (database if number % 2 else other).begin() as connection:
            quotas.admit_bytes(connection, ANN, quotas.hold(connection, ANN), 10)
            time.sleep(0.01)
            uploads.put(connection, ANN, f"{number:064x}", 10)

    errors = at_once(12, reserve)
    assert used(database).bytes == 50
    assert [type(error) for error in errors] == [StorageQuotaExceeded] * 7
    other.close()


def test_owners_without_a_row_are_held_too(database: Database) -> None:
    def reserve(number: int) -> None:
        with database.begin() as connection:
            quotas.hold(connection, "k_new")
            time.sleep(0.01)

    assert at_once(6, reserve) == []
    assert Owners(database).find("k_new").quotas == {}


def test_an_artifact_that_does_not_fit_is_not_its_owners(database: Database) -> None:
    allow(database, bytes=100)
    for digest, size_bytes, state in (("a", 60, "succeeded"), ("b", 60, "failed"), ("a", 60, "succeeded")):
        put(database, owner=ANN)
        job = claim(database)
        assert job is not None
        with database.begin() as connection:
            ended = transitions.end(connection, job, Outcome(artifact=digest * 64, artifact_bytes=size_bytes))
        assert ended is not None
        assert ended.state == state
    assert used(database).bytes == 60
    with database.read() as connection:
        assert not artifacts.has(connection, ANN, "b" * 64)


def test_jobs_over_the_number_that_may_run_wait_and_hold_up_nobody(database: Database) -> None:
    allow(database, running_jobs=1)
    first, second = put(database, owner=ANN), put(database, owner=ANN)
    tune = put(database, owner=ANN, kind=JobKind.TUNE)
    other = put(database, owner="k_bob", priority=-1)
    begun = [claim(database) for _ in range(3)]
    assert [job and job.id for job in begun] == [first.id, other.id, None]
    assert claim(database, lane=True) is None  # of either kind
    assert used(database) == Use(2, 1, 0, pytest.approx(used(database).tuning_hours))
    ended = begun[0]
    assert ended is not None
    with database.begin() as connection:
        transitions.end(connection, ended, Outcome())
    again = claim(database)
    assert again is not None
    assert again.id == second.id
    assert find(database, tune.id).state is State.QUEUED
    allow(database, running_jobs="default")
    assert claim(database, lane=True) is not None
    allow(database, "k_carl", running_jobs=0)
    put(database, owner="k_carl")
    assert claim(database) is None


def test_a_tuning_counts_with_what_it_asked_for_and_then_with_what_it_took(database: Database) -> None:
    allow(database, tuning_hours=2)
    put(database, owner=ANN, kind=JobKind.TUNE, extras={"time_s": HOUR_S})
    assert used(database).tuning_hours == 1
    admit_tuning(database, HOUR_S)
    with pytest.raises(QuotaExceeded) as refused:
        admit_tuning(database, HOUR_S + 60)
    assert refused.value.fields == {"quota": "tuning_hours", "limit": 2, "used": 1, "asked": 1.017}
    job = claim(database, lane=True)
    assert job is not None
    with database.begin() as connection:
        assert transitions.give_back(connection, job)
    assert used(database).tuning_hours == pytest.approx(1)
    job = claim(database, lane=True)
    assert job is not None
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE tuning_times SET seconds = 1800"))
        assert transitions.end(connection, job, Outcome())
    assert used(database).tuning_hours == pytest.approx(0.5, abs=0.1)
    admit_tuning(database, HOUR_S)


def test_what_was_tuned_over_thirty_days_ago_counts_no_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(database, tuning_hours=3)
    for _ in range(2):
        put(database, owner=ANN, kind=JobKind.TUNE, extras={"time_s": 1.0})
        job = claim(database, lane=True)
        assert job is not None
        with database.begin() as connection:
            transitions.end(connection, job, Outcome())
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE tuning_times SET seconds = 3600"))
        connection.execute(sa.text(f"UPDATE tuning_times SET ended = ended - 864000 WHERE job = '{job.id}'"))
    assert used(database).tuning_hours == 2
    for asked_s, days in ((2 * HOUR_S, 20), (3 * HOUR_S, 30)):
        with pytest.raises(QuotaExceeded) as refused:
            admit_tuning(database, asked_s)
        assert refused.value.fields["retry_after_s"] == pytest.approx(days * 86400, abs=600)
    with pytest.raises(QuotaExceeded) as refused:
        admit_tuning(database, 4 * HOUR_S)  # never
    assert "retry_after_s" not in refused.value.fields
    now = time.time() + 25 * 86400
    monkeypatch.setattr("relaxc.service.jobs.database.clock.now", lambda: now)
    assert used(database).tuning_hours == 1
    with database.begin() as connection:
        assert tuning_times.remove_old(connection, now - tuning_times.WINDOW_S, 9) == 1
    assert used(database).tuning_hours == 1


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_tuning_of_a_server_that_dies_has_taken_the_time_until_then(database: Database, deaths: int) -> None:
    """Not the hours in which no server was there to find it dead."""
    job = put(database, owner=ANN, kind=JobKind.TUNE, extras={"time_s": 1.0})
    for number in range(deaths):
        job = started(database, f"i{number}")
        now = time.time()
        with database.begin() as connection:
            connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(started=now - 10 * HOUR_S))
            connection.execute(sa.update(tables.instances).values(heartbeat=now - 8 * HOUR_S))
            heard = instances.heard(connection)
            (claimed,) = instances.bury(connection, [f"i{number}"])
            assert transitions.recover(connection, claimed, heard)
            assert transitions.recover(connection, claimed, heard) is None
    assert find(database, job.id).state is (State.FAILED if deaths == 2 else State.QUEUED)
    assert used(database).tuning_hours == pytest.approx(2 * deaths, abs=0.01)


def test_a_tuning_that_a_server_claimed_and_never_began_has_taken_nothing(database: Database) -> None:
    put(database, owner=ANN, kind=JobKind.TUNE, extras={"time_s": 1.0})
    job = started(database, "i1")
    with database.begin() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(started=time.time() - HOUR_S))
        assert transitions.recover(connection, job.claim, {"i1": 0.0})
    assert used(database).tuning_hours == pytest.approx(0, abs=0.001)


def started(database: Database, instance: str) -> JobRow:
    """The tuning whose turn it is."""
    job = claim(database, lane=True, instance=instance)
    assert job is not None
    return job
