"""What is old goes, in small transactions, and is counted; what a live job needs stays, however old it is."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.config import Settings
from relaxc.service.errors import ArtifactNotFound, Cancelled, ModelNotFound, RecordsNotFound, RelaxcError
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database import artifacts, audit, idempotency, orphans, shares, transitions, trials
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import AuditRow, JobKind, JobRequest, JobRow, Owner, iso_time
from relaxc.service.jobs.database.tables import artifacts as artifacts_table
from relaxc.service.jobs.database.tables import (
    audit_log,
    job_events,
    jobs,
    metadata,
    model_aliases,
    models,
    record_sets,
)
from relaxc.service.jobs.job import State
from relaxc.service.jobs.queue import sweep as module
from relaxc.service.jobs.queue.retention import RULES, Place
from relaxc.service.tuning.told import Told
from tests.jobs.queue.test_desk import ANN, upload
from tests.jobs.rows import claim, find, put
from tests.jobs.stepped import OpenStepped
from tests.records.samples import record

EXPIRIES = ("job", "model", "artifact", "records", "delivery", "idempotency", "audit", "upload")
LONG_AGO = time.time() - 1e9

SetSettings = Callable[..., None]


@pytest.fixture
def expire(monkeypatch: pytest.MonkeyPatch) -> SetSettings:
    """Have the settings these values, wherever they are asked for."""

    def change(**values: Any) -> None:
        changed = Settings(**values)
        for name in ("queue.sweep", "queue.orphans", "database.rows", "database.idempotency"):
            monkeypatch.setattr(f"relaxc.service.jobs.{name}.settings", lambda: changed)

    return change


def everything() -> dict[str, float]:
    return {f"{name}_expiry_s": 1e-3 for name in EXPIRIES}


def one_of_each(backend: Backend) -> JobRow:
    """A row in every table, and a file of every kind, all of them old; the job has ended."""
    database, digest = backend.database, upload(backend, ANN)
    backend.models.remove(ANN, digest)
    left = upload(backend, ANN, width=8)
    kept, _ = backend.records.add(ANN, record().to_json().encode(), name="mine")
    with backend.uploads.open(ANN, "a" * 64, offset=0, total=10) as part:
        part.write(b"12345")
    put(database, owner=ANN.id, kind=JobKind.TUNE, webhook="https://example.com")
    job = claim(database, lane=True)
    assert job is not None
    with database.begin() as connection:
        transitions.end(connection, job, Outcome())
        connection.execute(sa.update(module.tables.tuning_times).values(ended=LONG_AGO))
        trials.append(connection, job.id, [Told("0123456789abcdef", "elapsed", 1.0)])
        artifacts.own(connection, ANN.id, "c" * 64)
        connection.execute(sa.insert(model_aliases).values(owner=ANN.id, alias="d" * 64, digest=left))
        idempotency.insert(connection, ANN.id, "x-1", "e" * 64, job.id)
        shares.start(connection, "k_other", 1.0, 0.0)
        shares.start(connection, ANN.id, 1.0, 1e6)
        audit.append(connection, [AuditRow(LONG_AGO, ANN.id, "POST /v1/jobs", "", "202", "127.0.0.1", {})])
        connection.execute(sa.update(module.tables.deliveries).values(state="delivered", created=LONG_AGO))
    backend.blobs.put_bytes(f"jobs/{job.id}/1-log.txt", b"told")
    age(database, backend.blobs.local.root)
    assert kept.digest
    return job


def age(database: Database, *roots: Path) -> None:
    """Make what owners have, and every file, old."""
    with database.begin() as connection:
        for table in (models, artifacts_table, record_sets):
            connection.execute(sa.update(table).values(used=LONG_AGO))
    for root in roots:
        for path in root.rglob("*"):
            os.utime(path, (LONG_AGO, LONG_AGO))


def count(database: Database, table: sa.Table) -> int:
    with database.read() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def test_every_rule_is_followed_and_counted(servers: OpenStepped, expire: SetSettings) -> None:
    backend = servers("one")
    one_of_each(backend)
    expire(**everything())
    backend.sweep()
    backend.sweep()  # bytes of what lost its last owner
    counts = backend.retention.removed.counts()
    missed = [
        rule
        for rule in RULES
        if rule.is_counted and rule.place in (Place.TABLE, Place.BLOBS) and not counts[rule.place, rule.name]
    ]
    assert [(rule.place, rule.name) for rule in missed] == []
    left = {name: count(backend.database, table) for name, table in metadata.tables.items()}
    assert {name for name, rows in left.items() if rows} <= {"instances", "shares", "record_sets", "owners"}
    assert backend.retention.finished is not None
    files = [path for path in backend.blobs.local.root.rglob("*") if path.is_file()]
    assert {path.parent.parent.name for path in files} <= {"records"}  # what the tuning had won


def test_by_default_nothing_goes_that_somebody_would_miss(servers: OpenStepped) -> None:
    backend = servers("one")
    job = one_of_each(backend)
    backend.sweep()
    assert find(backend.database, job.id).ended
    for table in (models, artifacts_table, job_events):
        assert count(backend.database, table), table.name
    assert count(backend.database, audit_log) == 0  # of thirty years ago
    assert count(backend.database, record_sets) == 2 - 1


def test_the_bytes_of_a_record_set_go_with_its_last_owner(servers: OpenStepped, expire: SetSettings) -> None:
    backend, text = servers("one"), record().to_json().encode()
    bob = Owner("k_bob", frozenset({"tune"}))
    digests = {backend.records.add(owner, text, name="x")[0].digest for owner in (ANN, bob)}
    (digest,) = digests
    age(backend.database, backend.blobs.local.root)
    with backend.database.begin() as connection:
        module.uses.touch(connection, record_sets, bob.id, digest)
    expire(records_expiry_s=3600.0)
    backend.sweep()
    with pytest.raises(RecordsNotFound):
        backend.records.get(ANN, digest)
    assert backend.records.read(bob, digest)
    age(backend.database, backend.blobs.local.root)
    backend.sweep()
    with pytest.raises(RecordsNotFound):
        backend.records.path(digest)


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_what_a_live_job_needs_stays(servers: OpenStepped, expire: SetSettings, running: bool, forgotten: bool) -> None:
    """A job may wait for longer than anything is kept, and its owner forget what it needs."""
    backend = servers("one")
    database, digest = backend.database, upload(backend, ANN)
    kept, _ = backend.records.add(ANN, record().to_json().encode(), name="mine")
    with database.begin() as connection:
        artifacts.own(connection, ANN.id, "c" * 64)
    extras = {"artifact": "c" * 64, "records": kept.digest}
    job = put(database, owner=ANN.id, model=digest, extras=extras)
    if running:
        assert claim(database, instance=backend._keeper.id) is not None
    age(database, backend.blobs.local.root)
    backend.models.remove(ANN, digest)
    if forgotten:
        backend.records.remove(ANN, kept.digest)
        backend.artifacts.remove(ANN, "c" * 64)
    backend.blobs.put_bytes(f"jobs/{job.id}/1-log.txt", b"told")
    expire(**everything())
    backend.sweep()
    backend.sweep()
    with backend.models.open(digest) as reference:
        assert reference.path.is_file()
    assert backend.records.path(kept.digest).is_file()
    assert backend.artifacts.has(ANN, "c" * 64) is not forgotten
    with database.read() as connection:  # what the bucket's sweep asks
        assert orphans.unknown(connection, "artifacts", ["c" * 64]) == []
    assert backend.retention.needed_artifacts() == {"c" * 64}
    assert not find(database, job.id).ended
    assert (backend.blobs.local.root / "jobs" / job.id).is_dir()

    with database.begin() as connection:
        transitions.stop(connection, job.id, Cancelled("it was cancelled"))
        if running:
            transitions.end(connection, find(database, job.id), Outcome())
    time.sleep(0.01)
    age(database, backend.blobs.local.root)
    backend.sweep()
    backend.sweep()
    with pytest.raises(ModelNotFound), backend.models.open(digest):
        raise AssertionError
    with pytest.raises(RecordsNotFound):
        backend.records.path(kept.digest)
    assert not backend.artifacts.has(ANN, "c" * 64)
    assert not (backend.blobs.local.root / "jobs" / job.id).exists()


@pytest.mark.parametrize("table", [models, artifacts_table, record_sets], ids=lambda table: table.name)
def test_what_is_deleted_after_it_was_checked_is_refused(
    servers: OpenStepped, monkeypatch: pytest.MonkeyPatch, table: sa.Table
) -> None:
    """Retention takes it between the check of a request and its job."""
    backend = servers("one")
    digest = upload(backend, ANN)
    kept, _ = backend.records.add(ANN, record().to_json().encode(), name="mine")
    with backend.database.begin() as connection:
        artifacts.own(connection, ANN.id, "c" * 64)
    verify = JobRequest(JobKind.VERIFY, model=digest, artifact="c" * 64)
    tune = JobRequest(JobKind.TUNE, model=digest, target="x86-64-v3", records=kept.digest, trials=1)
    submission = backend.jobs._submission
    check = submission._check

    def checked(owner: Owner, asked: JobRequest) -> Any:
        found = check(owner, asked)
        with backend.database.begin() as connection:
            connection.execute(sa.delete(table))
        return found

    monkeypatch.setattr(submission, "_check", checked)
    missing = {models: ModelNotFound, artifacts_table: ArtifactNotFound, record_sets: RecordsNotFound}[table]
    with pytest.raises(missing):
        backend.jobs.submit(ANN, tune if table is record_sets else verify)
    assert count(backend.database, jobs) == 0


def test_a_use_is_noted_and_says_when_it_ends(servers: OpenStepped, expire: SetSettings) -> None:
    backend = servers("one")
    expire(model_expiry_s=1000.0, records_expiry_s=0.0, job_expiry_s=50.0)
    digest = upload(backend, ANN)
    age(backend.database)
    assert str(backend.models.get(ANN, digest).to_dict()["expires"]).startswith("19")
    job = backend.jobs.submit(ANN, JobRequest(JobKind.TUNE, model=digest, target="x86-64-v3", trials=1)).job
    row = backend.models.get(ANN, digest)
    assert time.time() - row.used < 60
    assert row.to_dict()["expires"] == iso_time(row.used + 1000)
    assert job.to_dict()["expires"] is None  # it has not ended
    ended = backend.jobs.cancel(ANN, job.id)
    assert ended.finished is not None
    assert ended.to_dict()["expires"] == iso_time(ended.finished + 50)
    kept, _ = backend.records.add(ANN, record().to_json().encode(), name="mine")
    assert kept.to_dict()["expires"] is None  # never


def test_jobs_with_many_events_go_in_small_transactions(servers: OpenStepped, expire: SetSettings) -> None:
    backend = servers("one")
    database = backend.database
    for _ in range(6):
        tell(database, ended(database), 900)
    with transactions(database) as deleted:
        expire(job_expiry_s=1e-3)
        backend.sweep()
    assert count(database, job_events) == count(database, jobs) == 0
    assert sum(deleted) == 6 * (901 + 1)
    assert max(deleted) == 2 * (901 + 1)


def test_a_job_that_has_told_more_than_a_batch_goes_alone(servers: OpenStepped, expire: SetSettings) -> None:
    backend = servers("one")
    for told in (10, 2500, 10):
        tell(backend.database, ended(backend.database), told)
    expire(job_expiry_s=1e-3)
    backend.sweep()
    assert count(backend.database, job_events) == 0


def test_an_owner_keeps_its_newest_jobs(servers: OpenStepped, expire: SetSettings) -> None:
    backend = servers("one")
    for _ in range(5):
        tell(backend.database, ended(backend.database), 10)
    with backend.database.read() as connection:
        numbers = sorted(connection.scalars(sa.select(jobs.c.number)))
    expire(jobs_kept=2.0)
    backend.sweep()
    with backend.database.read() as connection:
        assert sorted(connection.scalars(sa.select(jobs.c.number))) == numbers[-2:]


def test_a_part_that_fails_holds_up_no_other(
    servers: OpenStepped, expire: SetSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = servers("one")
    job = ended(backend.database)

    def fails(_: object) -> None:
        raise RelaxcError("the bucket does not answer")

    monkeypatch.setattr(backend.uploads, "sweep", fails)
    expire(job_expiry_s=1e-3)
    backend.sweep()
    assert "the bucket does not answer" in caplog.text
    assert backend.retention.finished is None
    with backend.database.read() as connection:
        assert connection.scalar(sa.select(sa.func.count()).where(jobs.c.id == job.id)) == 0


def test_a_server_that_stops_sweeps_no_further(servers: OpenStepped, expire: SetSettings) -> None:
    backend = servers("one")
    job = ended(backend.database)
    expire(job_expiry_s=1e-3)
    backend.retention.close()
    backend.sweep()
    assert find(backend.database, job.id).state is State.SUCCEEDED


def ended(database: Database) -> JobRow:
    put(database)
    job = claim(database)
    assert job is not None
    with database.begin() as connection:
        transitions.end(connection, job, Outcome())
    return job


def tell(database: Database, job: JobRow, most: int) -> None:
    """Have it so many events."""
    with database.begin() as connection:
        rows = [{"job": job.id, "seq": seq, "time": 0.0, "data": {"event": "log"}} for seq in range(3, most + 2)]
        connection.execute(sa.insert(job_events), rows)
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(events=most + 1))


@contextmanager
def transactions(database: Database) -> Iterator[list[int]]:
    """How many rows each transaction deleted."""
    found: list[int] = []

    def executed(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            connection.info["deleted"] = connection.info.get("deleted", 0) + cursor.rowcount

    def committed(connection: Connection) -> None:
        if deleted := connection.info.pop("deleted", 0):
            found.append(deleted)

    sa.event.listen(database.engine, "after_cursor_execute", executed)
    sa.event.listen(database.engine, "commit", committed)
    yield found
    sa.event.remove(database.engine, "after_cursor_execute", executed)
    sa.event.remove(database.engine, "commit", committed)


def test_an_sqlite_file_becomes_small_again(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite3"
    database = Database(f"sqlite:///{path}")
    text = hashlib.sha256(b"x").hexdigest() * 16
    row = {"time": 0.0, "key": "k", "action": text, "object": text, "outcome": "", "address": "", "detail": {}}
    with database.begin() as connection:
        connection.execute(sa.insert(audit_log), [row] * 10_000)
    database.close()  # and with it the log
    large = path.stat().st_size
    database = Database(f"sqlite:///{path}")
    with database.begin() as connection:
        connection.execute(sa.delete(audit_log))
    while database.give_back(500):
        pass
    database.close()
    assert path.stat().st_size < large / 4


@pytest.mark.parametrize("age_s", [1e18, math.inf])
def test_an_age_beyond_all_dates_is_never(servers: OpenStepped, expire: SetSettings, age_s: float) -> None:
    backend = servers("one")
    job = one_of_each(backend)
    expire(**{f"{name}_expiry_s": age_s for name in EXPIRIES})
    assert find(backend.database, job.id).to_dict()["expires"] is None
    assert backend.models.list(ANN)[0].to_dict()["expires"] is None
    backend.sweep()
    assert backend.retention.finished is not None
    assert find(backend.database, job.id).ended
