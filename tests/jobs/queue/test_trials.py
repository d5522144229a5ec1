"""A tuning's trials outlive its folder, its process and its server: what was told is not measured again."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.config import Settings
from relaxc.service.errors import ServiceError
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database import quotas, records, transitions, trials
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import LOCAL_OWNER, JobKind, JobRequest, JobRow, RecordsRow
from relaxc.service.jobs.job import State
from relaxc.service.jobs.objects.owners import Owners
from relaxc.service.jobs.queue import trials as module
from relaxc.service.jobs.queue.trials import TrialLog
from relaxc.service.process.limits import tuning_time_s
from relaxc.service.records import files
from relaxc.service.request import CompileOptions
from relaxc.service.tuning.told import TRIAL
from tests.jobs.conftest import OpenBackend
from tests.jobs.durable_entries import SEARCHED, SEARCHES, trial_of
from tests.jobs.queue.test_desk import upload
from tests.jobs.rows import claim, find, put
from tests.jobs.stepped import OpenStepped, begun, give_way
from tests.waiting import PATIENCE_S, until


def told_by(database: Database, id: str) -> int:
    """How many trials of a job are in the database."""
    with database.read() as connection:
        return sum(one.kind == TRIAL for one in trials.read(connection, id))


def tell(log: TrialLog, number: int) -> None:
    for told in trial_of(number):
        log.take({"event": "trial", **told.to_dict()})


def started(database: Database) -> JobRow:
    put(database, kind=JobKind.TUNE)
    job = claim(database, lane=True)
    assert job is not None
    return job


def best_of(backend: Backend, job: JobRow) -> int:
    """The number of the trial whose record the job's set has, which is one."""
    assert job.records is not None
    (kept,) = files.parse(backend.records.read(LOCAL_OWNER, job.records), "records")
    return kept.parameters["rows"]


def tuned(backend: Backend, seed: int = 0, **asked: Any) -> str:
    """A tuning by `search`."""
    model, options = upload(backend, LOCAL_OWNER), CompileOptions(seed=seed)
    request = JobRequest(JobKind.TUNE, model=model, target="x86-64-v3", options=options, **asked)
    return backend.jobs.submit(LOCAL_OWNER, request).job.id


def end_of(backend: Backend, id: str) -> JobRow:
    job = asyncio.run(backend.jobs.wait(LOCAL_OWNER, id, PATIENCE_S))
    assert job.ended, job
    return job


@pytest.mark.parametrize("how", ["gives way", "is drained", "dies"])
@pytest.mark.sampled
def test_a_tuning_goes_on_with_the_trial_that_was_in_flight(
    open_backend: OpenBackend, database: Database, how: str
) -> None:
    """A death is no attempt where trials have been told since it was begun: it dies twice here, and is begun thrice."""
    backend = open_backend(entries=SEARCHES)
    id = tuned(backend, time_s=60.0)
    for done in range(3, SEARCHED, 3):
        until(lambda done=done: told_by(database, id) == done)
        if how == "gives way":
            running = backend._scheduler.find(id)
            assert running is not None
            running.cancel(ServiceError("tuning gives way to a compile"), give_back=True)
        elif how == "is drained":
            backend.close()
            backend = open_backend(entries=SEARCHES)
        else:
            with database.begin() as connection:
                transitions.recover(connection, find(database, id).claim)
    job = end_of(backend, id)
    assert (job.state, job.attempts) == (State.SUCCEEDED, 1), job.error
    assert job.result == {"known": SEARCHED - 3, "time_s": 60.0, "records": None}
    until(lambda: told_by(database, id) == 0)


@pytest.mark.parametrize("how", ["is cancelled", "crashes"])
@pytest.mark.sampled
def test_what_a_tuning_has_won_is_its_owners_however_it_ends(
    open_backend: OpenBackend, database: Database, how: str
) -> None:
    backend = open_backend(entries=SEARCHES)
    id = tuned(backend, seed=1 if how == "crashes" else 0)
    if how == "is cancelled":
        until(lambda: told_by(database, id) == 3)
        backend.jobs.cancel(LOCAL_OWNER, id)
    job = end_of(backend, id)
    assert job.state is (State.FAILED if how == "crashes" else State.CANCELLED), job.error
    assert best_of(backend, job) == 2
    assert [row.digest for row in backend.records.list(LOCAL_OWNER)] == [job.records]
    until(lambda: told_by(database, id) == 0)


def test_what_a_tuning_has_won_is_its_owners_where_nobody_ran_it_at_its_end(servers: OpenStepped) -> None:
    server = servers("one")
    ids = [put(server.database, kind=JobKind.TUNE, owner=LOCAL_OWNER.id).id for _ in range(2)]
    for number in (0, 1):
        held = begun(server, tune=True)
        held.do(lambda running, number=number: tell(running.trials, number))
        give_way(held)
        held.end()
        server.jobs.cancel(LOCAL_OWNER, held.running.job.id)
    for number, id in enumerate(ids):
        assert best_of(server, find(server.database, id)) == number
        assert told_by(server.database, id) == 0


def test_what_a_tuning_has_won_is_its_owners_when_the_last_server_dies(servers: OpenStepped) -> None:
    id = put(servers("one").database, kind=JobKind.TUNE, owner=LOCAL_OWNER.id).id
    for each in ("two", "three"):
        server = servers(each)
        server.bury_others()
        held = begun(server, tune=True)
        if each == "two":
            held.do(lambda running: tell(running.trials, 4))
    last = servers("last")
    last._keeper._lease_s = -1.0
    last.upkeep.recover()
    job = find(last.database, id)
    assert (job.state, job.error["code"] if job.error else "") == (State.FAILED, "server-died")
    assert best_of(last, job) == 4
    assert told_by(last.database, id) == 0


@pytest.mark.parametrize("how", ["succeeds", "is cancelled"])
def test_records_over_the_quota_wait_for_room_in_the_database(
    open_backend: OpenBackend, database: Database, how: str
) -> None:
    """Nothing that was won is lost, and nothing passes the quota: the trials stay with the job."""
    backend = open_backend(entries=SEARCHES)
    backend.owners.change(LOCAL_OWNER.id, quotas={"running_jobs": 0})
    id = tuned(backend, seed=2 if how == "succeeds" else 0, time_s=60.0)
    backend.owners.change(LOCAL_OWNER.id, quotas={"bytes": 1, "running_jobs": "unlimited"})
    if how == "is cancelled":
        until(lambda: told_by(database, id) >= 3)
        backend.jobs.cancel(LOCAL_OWNER, id)
    job = end_of(backend, id)
    code = "cancelled" if how == "is cancelled" else "storage-quota-exceeded"
    assert (job.error or {})["code"] == code
    assert job.records is None
    backend.sweep()
    assert backend.records.list(LOCAL_OWNER) == []
    assert list((backend.blobs.local.root / "records").glob("*")) == []
    assert told_by(database, id) > 0
    backend.owners.change(LOCAL_OWNER.id, quotas={"bytes": "unlimited"})
    backend.sweep()
    assert [row.digest for row in backend.records.list(LOCAL_OWNER)] == [find(database, id).records]
    assert best_of(backend, find(database, id)) >= 2
    assert told_by(database, id) == 0


def test_a_set_of_records_that_was_kept_passes_no_quota_at_the_end(database: Database) -> None:
    """Another upload may have taken the room meanwhile."""
    job = started(database)
    Owners(database).change(put_owner(database, job.owner), quotas={"bytes": 10})
    row = RecordsRow(job.owner, "d" * 64, "tuned", 1, 11, 1.0, 1.0, job.id)
    with database.begin() as connection:
        ended = transitions.end(connection, job, Outcome(records=row))
        assert ended is not None
        assert (ended.records, (ended.error or {})["code"]) == (None, "storage-quota-exceeded")
        assert records.owned(connection, job.owner, 9) == []


def put_owner(database: Database, owner: str) -> str:
    """The owner has a row."""
    with database.begin() as connection:
        quotas.hold(connection, owner)
    return owner


def test_trials_are_forgotten_some_at_a_time(
    open_backend: OpenBackend, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tuning has told of some hundred thousand trials: no transaction removes more than a thousand."""
    monkeypatch.setattr(module, "_AT_ONCE", 4)
    backend = open_backend(entries=SEARCHES)
    most: list[int] = []
    removes = trials.remove
    monkeypatch.setattr(trials, "remove", lambda *args: most.append(removes(*args)) or most[-1])
    id = tuned(backend, seed=2)
    ended = end_of(backend, id)
    assert ended.state is State.SUCCEEDED, ended.error
    until(lambda: told_by(database, id) == 0)
    assert most == [4, 2]


def test_trials_of_jobs_that_are_forgotten_go_some_at_a_time(database: Database) -> None:
    ids = []
    for _ in range(2):
        job = started(database)
        log = TrialLog(database, job)
        for number in range(3):
            tell(log, number)
        with database.begin() as connection:
            transitions.end(connection, job, Outcome(error=ServiceError("x")))
        ids.append(job.id)
    gone = []
    while not gone or gone[-1]:
        with database.begin() as connection:
            gone.append(trials.remove_old(connection, time.time() + 1, 4))
    assert max(gone) == 4
    assert [told_by(database, id) for id in ids] == [0, 0]


def test_trials_of_a_claim_that_is_over_are_not_written(servers: OpenStepped) -> None:
    one, two = servers("one"), servers("two")
    id = put(one.database, kind=JobKind.TUNE).id
    stale = begun(one, tune=True)
    stale.do(lambda running: tell(running.trials, 0))
    two.bury_others()
    holder = begun(two, tune=True)
    assert [one.name for one in holder.running.trials.known()] == [told.name for told in trial_of(0)]
    before = find(two.database, id)
    stale.do(lambda running: running.take({"event": "trial", **trial_of(1)[1].to_dict()}))
    assert stale.running.cancellation.cancelled
    assert find(two.database, id) == before
    assert told_by(two.database, id) == 1
    holder.do(lambda running: tell(running.trials, 2))
    assert told_by(two.database, id) == 2


def test_a_trial_is_progress_and_makes_up_for_servers_that_died(database: Database) -> None:
    first = started(database)
    with database.begin() as connection:
        transitions.recover(connection, first.claim)
    second = claim(database, lane=True)
    assert second is not None
    assert second.attempts == 2
    TrialLog(database, second).take({"event": "trial", "run": "0123456789abcdef", "name": "elapsed", "value": 1.0})
    assert find(database, second.id).attempts == 2
    tell(TrialLog(database, second), 0)
    assert find(database, second.id).attempts == 1
    with database.begin() as connection:
        given = transitions.give_back(connection, second)
    assert given is not None
    assert given.attempts == 0


def test_trials_wait_for_a_database_that_does_not_answer(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    job = started(database)
    log = TrialLog(database, job)

    @contextmanager
    def fails() -> Any:
        raise ServiceError("the database does not answer")
        yield

    with monkeypatch.context() as gone:
        gone.setattr(database, "begin", fails)
        tell(log, 0)
        tell(log, 1)
    assert told_by(database, job.id) == 0
    log.flush()
    assert [told.name for told in log.known()] == [told.name for number in (0, 1) for told in trial_of(number)]


@pytest.mark.parametrize(
    "data",
    [
        {"run": "../../../../../x", "name": "elapsed", "value": 1.0},
        {"run": "0123456789abcdef", "name": "note", "value": 1.0},
        {"run": "0123456789abcdef", "name": "record x", "value": {"workload": "x"}},
        {"run": "0123456789abcdef", "name": "trial \0", "value": trial_of(0)[1].value},
        {"run": "0123456789abcdef", "name": "trial x", "value": {**trial_of(0)[1].value, "seconds": "1"}},
        {"run": "0123456789abcdef", "name": "trial x", "value": {**trial_of(0)[1].value, "more": "1"}},
        {
            "run": "0123456789abcdef",
            "name": "start x",
            "value": {"hints": [], "standing": None, "trace": "x" * 300_000},
        },
        {},
    ],
)
def test_what_no_tuning_tells_is_left_out(tmp_path: Path, data: dict[str, Any]) -> None:
    database = Database(f"sqlite:///{tmp_path / 'service.sqlite3'}")
    log = TrialLog(database, started(database))
    log.take({"event": "trial", **data})
    assert log.known() == []
    database.close()


def test_a_job_tells_of_no_more_trials_than_there_is_room_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 2500)
    job = started(database)
    first = TrialLog(database, job)
    tell(first, 0)
    kept = len(first.known())
    assert kept == 2
    again = TrialLog(database, job)
    again.known()
    for number in range(1, 9):
        tell(again, number)
    assert kept < len(first.known()) < 8
    again.flush()
    assert not again.lost


def test_the_time_of_a_tuning_leaves_it_enough_to_end_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit_s, left_s in ((24 * 3600.0, 23.5 * 3600), (1000.0, 500.0)):
        monkeypatch.setattr(
            "relaxc.service.process.limits.settings", lambda limit_s=limit_s: Settings(tune_timeout_s=limit_s)
        )
        assert tuning_time_s(None) == left_s
        assert tuning_time_s(77.0) == 77.0
