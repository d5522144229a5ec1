"""A server that runs no jobs and a worker on another machine: they share the database and the bucket, and no file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from relaxc.service.config import settings
from relaxc.service.errors import InvalidTarget, NoWorker
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database import instances
from relaxc.service.jobs.database.rows import AuditFilter, JobKind, JobRequest
from relaxc.service.jobs.job import State
from relaxc.service.jobs.workers.fleet import Role
from relaxc.service.request import CompileOptions
from tests.jobs.conftest import OpenBackend
from tests.jobs.queue.test_desk import ANN, asks, end_of, log_of, until, upload
from tests.jobs.stepped import OpenStepped
from tests.jobs.workers.kinds import HASWELL, HOPPER, ZEN
from tests.s3 import BUCKET, CREDENTIALS, running_s3
from tests.waiting import until as wait_for

Open = Callable[..., Backend]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("moto")
    with running_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.fixture
def apart(s3: str, open_backend: OpenBackend, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens processes of the service that have each a folder of its own."""
    for name, value in {**CREDENTIALS, "RELAXC_S3_ENDPOINT_URL": s3}.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    yield lambda name, **options: open_backend(name, blobs_url=f"s3://{BUCKET}/{tmp_path.name}", **options)
    settings.cache_clear()


def test_a_job_is_done_by_a_worker_and_its_result_is_everywhere(apart: Open) -> None:
    server = apart("server", workers=0)
    id = server.jobs.submit(ANN, asks(server, beside=1)).job.id
    assert server.jobs.get(ANN, id).missing == ["a worker that runs jobs other than tunings"]
    worker = apart("worker", role=Role.WORKER)
    job = end_of(server, ANN, id)
    assert (job.state, job.missing) == (State.SUCCEEDED, None)
    assert not server.store.ls()
    assert len(worker.store.ls()) == 1
    with server.artifacts.open(ANN, str(job.artifact)) as opened:
        assert len(opened.entry.files) == 2
    again = server.jobs.submit(ANN, asks(server, beside=1)).job
    assert (again.state, again.artifact) == (State.SUCCEEDED, job.artifact)
    artifact, model = str(job.artifact), upload(server, ANN)
    for request in (
        JobRequest(JobKind.BENCH, artifact=artifact),
        JobRequest(JobKind.VERIFY, artifact=artifact, model=model),
    ):
        ended = end_of(server, ANN, server.jobs.submit(ANN, request).job.id)
        assert ended.state is State.SUCCEEDED, ended.error
    tuning = server.jobs.submit(ANN, JobRequest(JobKind.TUNE, model=model, target="x86-64-v3")).job
    ended = end_of(server, ANN, tuning.id)
    assert ended.state is State.SUCCEEDED, ended.error


def test_a_log_is_read_and_a_job_cancelled_from_another_server(apart: Open) -> None:
    server, other = apart("server", workers=0), apart("other", workers=0)
    apart("worker", role=Role.WORKER)
    id = server.jobs.submit(ANN, asks(server, "sleep")).job.id
    until(State.RUNNING, other, id)
    wait_for(lambda: "sleeping" in (log_of(other, id) or ""))
    other.jobs.cancel(ANN, id)
    assert end_of(server, ANN, id).state is State.CANCELLED
    assert "sleeping" in (log_of(other, id) or "")


def test_auto_is_what_the_worker_is_that_takes_it(apart: Open) -> None:
    server = apart("server", workers=0)
    apart("zen", role=Role.WORKER, machine=ZEN)
    wait_for(lambda: len(server.fleet.every()) == 2)
    model = upload(server, ANN)
    one = server.jobs.submit(ANN, JobRequest(JobKind.COMPILE, model=model)).job
    assert one.target["name"] == "znver4"
    ended = end_of(server, ANN, one.id)
    assert ended.state is State.SUCCEEDED, ended.error
    apart("haswell", role=Role.WORKER, machine=HASWELL)
    wait_for(lambda: len(server.fleet.every()) == 3)
    two = server.jobs.submit(ANN, JobRequest(JobKind.COMPILE, model=model, options=CompileOptions(opt_level=1))).job
    assert two.target == {}
    ended = end_of(server, ANN, two.id)
    assert ended.state is State.SUCCEEDED, ended.error
    assert ended.target["name"] in ("znver4", "haswell")
    assert ended.to_dict()["resolved"] == ended.target["name"]


def test_who_can_take_what_takes_that(apart: Open) -> None:
    server = apart("server", workers=0)
    machines = {"zen": ZEN, "haswell": HASWELL, "hopper": HOPPER}
    ids = {apart(name, role=Role.WORKER, machine=machine).id: name for name, machine in machines.items()}
    wait_for(lambda: len(server.fleet.every()) == 4)
    model = upload(server, ANN)
    wanted = {"znver4": {"zen"}, "cuda-sm90": {"hopper"}, "x86-64-v3": set(machines), "haswell": {"haswell", "hopper"}}
    asked = {target: JobRequest(JobKind.TUNE, model=model, target=target) for target in wanted}
    jobs = {target: server.jobs.submit(ANN, request).job.id for target, request in asked.items()}
    for target, id in jobs.items():
        ended = end_of(server, ANN, id)
        assert ended.state is State.SUCCEEDED, ended.error
        (ran_on,) = [event.data["worker"] for event in server.jobs.events(ANN, id) if "worker" in event.data]
        assert ids[ran_on] in wanted[target]


def test_a_server_that_is_alone_refuses_what_it_cannot_run(open_backend: OpenBackend) -> None:
    alone = open_backend(machine=replace(HASWELL))
    model = upload(alone, ANN)
    with pytest.raises(NoWorker, match="CPU feature avx512f") as refused:
        alone.jobs.submit(ANN, JobRequest(JobKind.TUNE, model=model, target="x86-64-v4"))
    assert "CPU feature avx512f" in refused.value.fields["missing"]
    job = alone.jobs.submit(ANN, JobRequest(JobKind.COMPILE, model=model, target="x86-64-v4")).job
    ended = end_of(alone, ANN, job.id)
    assert ended.state is State.SUCCEEDED, ended.error


def test_over_postgresql_nobody_needs_to_look_again_and_again(
    apart: Open, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is begun, followed and cancelled by processes that look by themselves once in an hour."""
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite tells nobody anything")
    monkeypatch.setattr("relaxc.service.jobs.queue.notices._HEARD_POLL_S", 3600.0)
    server, worker = apart("server", workers=0), apart("worker", role=Role.WORKER)
    wait_for(lambda: server._notices._signals.is_heard and worker._notices._signals.is_heard)
    for _ in range(3):
        id = server.jobs.submit(ANN, asks(server, "sleep")).job.id
        until(State.RUNNING, server, id)
        server.jobs.cancel(ANN, id)
        assert end_of(server, ANN, id).state is State.CANCELLED


def test_that_a_worker_came_and_died_is_in_the_audit_log(servers: OpenStepped) -> None:
    server, worker = servers("server"), servers("worker")
    with server.database.begin() as connection:
        instances.forget(connection, worker.id)
    worker._keeper._about = {**worker._keeper._about, "role": Role.WORKER}
    worker._keeper._register()
    server.bury_others()
    came, died = reversed(server.audit.page(AuditFilter()).rows)
    assert (came.action, died.action) == ("relaxc worker", "relaxc worker died")
    assert came.object == died.object == worker.id


def test_before_there_is_a_worker_each_word_for_its_machine_is_a_job_of_its_own(open_backend: OpenBackend) -> None:
    server = open_backend(workers=0)
    model = upload(server, ANN)
    for kind in (JobKind.COMPILE, JobKind.TUNE):
        asked = [JobRequest(kind, model=model, target=target) for target in ("auto", "auto-gpu", " auto ")]
        first, second, third = (server.jobs.submit(ANN, request).job.id for request in asked)
        assert first == third != second


def test_a_tuning_for_several_devices_is_refused_when_it_is_asked_for(open_backend: OpenBackend) -> None:
    server = open_backend(workers=0)
    request = JobRequest(JobKind.TUNE, model=upload(server, ANN), target="cuda-sm80,cuda-sm90")
    with pytest.raises(InvalidTarget, match="a tuning is for one target"):
        server.jobs.submit(ANN, request)


def test_what_is_in_the_store_waits_for_nobody(open_backend: OpenBackend) -> None:
    made = open_backend()
    request = asks(made)
    end_of(made, ANN, made.jobs.submit(ANN, request).job.id)
    made.close()
    job = open_backend(workers=0).jobs.submit(ANN, request).job
    assert (job.state, job.missing) == (State.SUCCEEDED, None)


def test_what_is_cancelled_waits_for_nobody(open_backend: OpenBackend) -> None:
    server = open_backend(workers=0)
    job = server.jobs.submit(ANN, asks(server)).job
    assert job.missing
    server.jobs.cancel(ANN, job.id)
    assert server.jobs.get(ANN, job.id).missing is None
