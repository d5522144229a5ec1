"""Jobs from request to end, over both databases, with real children that do what `tests.jobs.entries` says."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from relaxc.service.artifact.manifest import Manifest
from relaxc.service.config import settings
from relaxc.service.errors import (
    ArtifactNotFound,
    Busy,
    IdempotencyConflict,
    InvalidOption,
    JobEnded,
    JobNotFound,
    ModelNotFound,
    QuotaExceeded,
    RelaxcError,
    ServiceError,
)
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database import events, expired
from relaxc.service.jobs.database.rows import EventRow, JobKind, JobRequest, JobRow, Owner
from relaxc.service.jobs.database.tables import deliveries
from relaxc.service.jobs.job import Origin, State
from relaxc.service.process.sandbox import landlock
from relaxc.service.request import CompileOptions
from tests.jobs.conftest import ENTRIES
from tests.jobs.entries import seed_of
from tests.namespaces import outside
from tests.waiting import PATIENCE_S, gone

ANN, BOB = (Owner(f"k_{name}", frozenset({"read", "compile", "tune"})) for name in ("ann", "bob"))
ADMIN = Owner("k_admin", frozenset({"read", "compile", "tune", "admin"}))

OpenBackend = Callable[..., Backend]


@pytest.fixture
def backend(open_backend: OpenBackend) -> Backend:
    return open_backend()


def asks(backend: Backend, entry: str = "made", owner: Owner = ANN, **fields: Any) -> JobRequest:
    """A compile, of a model that the owner has, whose child does this."""
    shapes = tuple((name, (fields.pop(name),)) for name in ("sleep_s", "weights_mib", "beside") if name in fields)
    model = fields.pop("model", None) or upload(backend, owner)
    options = CompileOptions(seed=seed_of(entry), shapes=shapes)
    return JobRequest(JobKind.COMPILE, model=model, target="x86-64-v3", options=options, **fields)


def upload(backend: Backend, owner: Owner, width: int = 4) -> str:
    """The digest of a small model that the owner has now."""
    import hashlib

    from tests.api.conftest import make_onnx

    data = make_onnx(width)
    sha256 = hashlib.sha256(data).hexdigest()
    with backend.uploads.open(owner, sha256, offset=0, total=len(data)) as part:
        part.write(data)
    return backend.uploads.finish(owner, sha256, name="m.onnx")[0].digest


def end_of(backend: Backend, owner: Owner, id: str, timeout_s: float = PATIENCE_S) -> JobRow:
    job = asyncio.run(backend.jobs.wait(owner, id, timeout_s))
    assert job.ended, job
    return job


def follow(backend: Backend, owner: Owner, id: str, after: int = 0) -> list[EventRow]:
    async def all_of_it() -> list[EventRow]:
        return [event async for event in backend.jobs.stream(owner, id, after=after)]

    return asyncio.run(all_of_it())


def until(state: State, backend: Backend, id: str, stage: str | None = None) -> JobRow:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        job = backend.jobs.get(ADMIN, id)
        if job.state is state and (stage is None or job.stage == stage):
            return job
        assert not job.ended, job
        time.sleep(0.05)
    raise AssertionError(f"{id} is {job.state}")


def log_of(backend: Backend, id: str, owner: Owner = ANN) -> str | None:
    """What the job has printed."""
    file = backend.jobs.log(owner, id)
    if file is None:
        return None
    with file:
        return file.read().decode()


def test_a_miss_becomes_an_artifact_and_the_next_is_a_hit(backend: Backend) -> None:
    first = backend.jobs.submit(ANN, asks(backend, name="resnet.onnx"))
    assert (first.origin, first.job.state) == (Origin.MISS, State.QUEUED)
    story = follow(backend, ANN, first.job.id)
    job = backend.jobs.get(ANN, first.job.id)
    assert [event.data.get("stage") or event.data["state"] for event in story] == [
        "running",
        "build",
        "build",
        "succeeded",
    ]
    assert story[-1].last
    assert (job.state, job.name, job.attempts, job.progress) == (State.SUCCEEDED, "resnet.onnx", 1, None)
    assert job.created <= (job.started or 0) <= (job.finished or 0)
    with backend.artifacts.open(ANN, str(job.artifact)) as opened:
        assert opened.path.stat().st_size > 1 << 20
    again = backend.jobs.submit(ANN, asks(backend))
    assert (again.origin, again.job.state, again.job.artifact) == (Origin.HIT, State.SUCCEEDED, job.artifact)
    assert [event.data["state"] for event in follow(backend, ANN, again.job.id)] == ["succeeded"]
    assert follow(backend, ANN, first.job.id, after=2) == story[2:]
    assert log_of(backend, first.job.id) is not None
    assert log_of(backend, again.job.id) is None


def test_the_story_of_an_ended_job_is_not_kept_for_who_reads_it(backend: Backend) -> None:
    id = end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend)).job.id).id
    with backend.database.begin() as connection:
        told = [(time.time(), {"event": "log", "message": str(i)}) for i in range(100)]
        events.append(connection, id, told)
        events.append(connection, id, [(time.time(), {"event": "state", "state": "succeeded"})])

    async def read() -> list[int]:
        found = []
        async for event in backend.jobs.stream(ANN, id):
            found.append(event.seq)
            assert backend._notices.hub._stories == {}
        return found

    assert asyncio.run(read()) == [1, 2, 3, 4]  # to the end of the job
    assert [event.seq for event in follow(backend, ANN, id, after=4)] == list(range(5, 106))


def test_owners_see_their_own_and_an_admin_everything(backend: Backend) -> None:
    request = asks(backend)
    job = end_of(backend, ANN, backend.jobs.submit(ANN, request).job.id)
    calls: list[Callable[[Owner], object]] = [
        lambda owner: backend.jobs.get(owner, job.id),
        lambda owner: backend.jobs.events(owner, job.id),
        lambda owner: backend.jobs.stream(owner, job.id),
        lambda owner: log_of(backend, job.id, owner),
        lambda owner: backend.models.get(owner, str(request.model)),
        lambda owner: backend.artifacts.open(owner, str(job.artifact)).close(),
    ]
    for call in calls:
        call(ADMIN)
        with pytest.raises((JobNotFound, ModelNotFound, ArtifactNotFound)):
            call(BOB)
    assert backend.jobs.list(BOB).jobs == ()
    assert [row.id for row in backend.jobs.list(ADMIN).jobs] == [job.id]
    with pytest.raises(ModelNotFound):
        backend.jobs.submit(BOB, request)
    # Bob, who sends the same model, gets the same artifact by a job of his own.
    bobs = backend.jobs.submit(BOB, asks(backend, owner=BOB))
    assert (bobs.origin, bobs.job.artifact) == (Origin.HIT, job.artifact)
    backend.artifacts.open(BOB, str(job.artifact)).close()


def test_a_manifest_is_remembered_but_not_for_others_nor_after_its_end(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = str(end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend)).job.id).artifact)
    with pytest.raises(ArtifactNotFound):
        backend.artifacts.manifest(BOB, digest)
    first = backend.artifacts.manifest(ANN, digest)
    with backend.artifacts.open(ANN, digest) as opened:
        assert first.decode() == Manifest.read(opened.path).to_json()
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "read", None)
        assert backend.artifacts.manifest(ANN, digest) == backend.artifacts.manifest(ADMIN, digest) == first
    for owner in (BOB, Owner("k_eve", frozenset({"read"}))):
        with pytest.raises(ArtifactNotFound):
            backend.artifacts.manifest(owner, digest)
    assert backend.store.gc(0, grace_s=0)
    with pytest.raises(ArtifactNotFound):
        backend.artifacts.manifest(ANN, digest)


@pytest.mark.parametrize(
    ("entry", "code", "fault"),
    [
        ("segfault", "compiler-crashed", "compiler"),
        ("bug", "compile-failed", "compiler"),
        ("refuse", "unsupported-model", "model"),
        ("link_out", "compile-failed", "compiler"),
    ],
)
def test_a_failure_is_an_error_beside_the_state(backend: Backend, entry: str, code: str, fault: str) -> None:
    job = end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend, entry)).job.id)
    assert (job.state, job.artifact) == (State.FAILED, None)
    assert job.error is not None
    assert (job.error["code"], job.error["fault"]) == (code, fault)
    assert job.error["remedy"]
    if entry == "refuse":
        assert job.error["node"] == "a"


def test_a_cancelled_job_leaves_no_process(backend: Backend) -> None:
    id = backend.jobs.submit(ANN, asks(backend, "sleep")).job.id
    until(State.RUNNING, backend, id, "build")
    event = next(event for event in follow_some(backend, id, 3) if "pids" in event.data)
    family = [psutil.Process(pid) for pid in outside(event.data["pids"])]
    with pytest.raises(JobNotFound):
        backend.jobs.cancel(BOB, id)
    backend.jobs.cancel(ANN, id)
    assert gone(family)
    job = end_of(backend, ANN, id)
    assert (job.state, (job.error or {})["code"]) == (State.CANCELLED, "cancelled")
    with pytest.raises(JobEnded):
        backend.jobs.cancel(ANN, id)
    assert "sleeping" in (log_of(backend, id) or "")


def follow_some(backend: Backend, id: str, count: int) -> list[EventRow]:
    async def some() -> list[EventRow]:
        found: list[EventRow] = []
        async for event in backend.jobs.stream(ADMIN, id):
            found.append(event)
            if len(found) == count:
                break
        return found

    return asyncio.run(some())


def test_equal_requests_join_and_a_full_queue_refuses(open_backend: OpenBackend) -> None:
    backend = open_backend(queue_max=4)
    model = upload(backend, ANN)
    running = backend.jobs.submit(ANN, asks(backend, "sleep", model=model)).job
    until(State.RUNNING, backend, running.id)
    joined = backend.jobs.submit(ANN, asks(backend, "sleep", model=model))
    assert (joined.origin, joined.job.id) == (Origin.JOINED, running.id)
    waiting = [backend.jobs.submit(ANN, asks(backend, "made", model=model, weights_mib=i)).job for i in (1, 2)]
    with pytest.raises(Busy) as caught:
        backend.jobs.submit(ANN, asks(backend, "made", model=model, weights_mib=3))
    assert caught.value.fields["retry_after_s"] >= 1
    assert backend.counts().waiting == 2
    assert backend.jobs.cancel(ANN, waiting[0].id).state is State.CANCELLED
    backend.jobs.submit(ANN, asks(backend, "made", model=model, weights_mib=3))
    backend.jobs.cancel(ANN, running.id)
    ended = end_of(backend, ANN, waiting[1].id)
    assert ended.state is State.SUCCEEDED, ended.error


def test_an_equal_request_keeps_its_webhook_and_its_priority(backend: Backend) -> None:
    model = upload(backend, ANN)
    first = backend.jobs.submit(ANN, asks(backend, "sleep", model=model, priority=3)).job
    until(State.RUNNING, backend, first.id, "build")
    for priority, webhook in ((9, None), (-9, "http://example.com/1"), (0, "http://example.com/1")):
        asked = asks(backend, "sleep", model=model, priority=priority, webhook=webhook, name="another.onnx")
        joined = backend.jobs.submit(ANN, asked)
        assert (joined.origin, joined.job.id) == (Origin.JOINED, first.id)
        assert (joined.job.priority, joined.job.name) == (9, "m.onnx")
    for i in range(2, 17):
        backend.jobs.submit(ANN, asks(backend, "sleep", model=model, webhook=f"http://example.com/{i}"))
    with pytest.raises(InvalidOption, match="16 webhooks"):
        backend.jobs.submit(ANN, asks(backend, "sleep", model=model, webhook="http://example.com/17"))
    with backend.database.read() as connection:
        held = connection.execute(sa.select(deliveries.c.url).where(deliveries.c.job == first.id)).all()
    assert [row.url for row in held] == [f"http://example.com/{i}" for i in range(1, 17)]
    backend.jobs.cancel(ANN, first.id)


def test_the_key_of_a_job_that_was_swept_makes_another(backend: Backend) -> None:
    request = asks(backend)
    first = backend.jobs.submit(ANN, request, idempotency_key="x-1", body_digest="a" * 64).job
    end_of(backend, ANN, first.id)
    with backend.database.begin() as connection:
        assert expired.remove_jobs(connection, time.time() + 1, 1).claims == [((first.id, 1), JobKind.COMPILE)]
    with pytest.raises(IdempotencyConflict):
        backend.jobs.submit(ANN, request, idempotency_key="x-1", body_digest="b" * 64)
    second = backend.jobs.submit(ANN, request, idempotency_key="x-1", body_digest="a" * 64)
    assert (second.origin, second.job.id != first.id) == (Origin.HIT, True)
    again = backend.jobs.submit(ANN, request, idempotency_key="x-1", body_digest="a" * 64)
    assert (again.origin, again.job.id) == (Origin.REPEATED, second.job.id)


def test_an_idempotency_key_repeats_the_answer(backend: Backend) -> None:
    request = asks(backend)
    first = backend.jobs.submit(ANN, request, idempotency_key="x-1", body_digest="a" * 64)
    end_of(backend, ANN, first.job.id)
    again = backend.jobs.submit(ANN, request, idempotency_key="x-1", body_digest="a" * 64)
    assert (again.origin, again.job.id) == (Origin.REPEATED, first.job.id)
    with pytest.raises(IdempotencyConflict):
        backend.jobs.submit(ANN, request, idempotency_key="x-1", body_digest="b" * 64)
    bobs = backend.jobs.submit(BOB, asks(backend, owner=BOB), idempotency_key="x-1", body_digest="b" * 64)
    assert bobs.job.id != first.job.id
    with pytest.raises(InvalidOption):
        backend.jobs.submit(ANN, request, idempotency_key="\n")


def test_pages_are_newest_first_and_filtered(backend: Backend) -> None:
    model = upload(backend, ANN)
    ids = [backend.jobs.submit(ANN, asks(backend, "refuse", model=model)).job.id]
    end_of(backend, ANN, ids[0])
    ids += [backend.jobs.submit(ANN, asks(backend, model=model, weights_mib=i)).job.id for i in range(1, 5)]
    seen: list[str] = []
    cursor = None
    while True:
        page = backend.jobs.list(ANN, limit=2, cursor=cursor)
        seen += [job.id for job in page.jobs]
        cursor = page.next
        if cursor is None:
            break
    assert seen == ids[::-1]
    (failed,) = backend.jobs.list(ANN, state=State.FAILED).jobs
    whole = backend.jobs.get(ANN, ids[0])
    assert (failed.id, failed.result, failed.finished) == (ids[0], None, whole.finished)
    assert failed.error == {**(whole.error or {}), "fields": {}}
    assert "result" not in failed.listed()
    assert backend.jobs.list(ANN, kind=JobKind.TUNE).jobs == ()
    assert len(backend.jobs.list(ANN, model=model).jobs) == 5
    for wrong in ("x", "!", "bjE=", "bi0x", "\ud800"):
        with pytest.raises(InvalidOption):
            backend.jobs.list(ANN, cursor=wrong)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": None},
        {"artifact": "a" * 64},
        {"trials": 3},
        {"priority": 101},
        {"webhook": "ftp://x/"},
        {"webhook": "http://127.0.0.1/"},
        {"webhook": "http://[::ffff:10.0.0.1]/"},
        {"target": "a toaster"},
        {"model": "0" * 64},
        {"records": "0" * 64},
        {"options": CompileOptions(plugins=("/etc/passwd",))},
        {"kind": JobKind.BENCH, "model": None, "artifact": "0" * 64},
        {"kind": JobKind.TUNE, "time_s": -1.0},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(sqlite_backend: Backend, fields: dict[str, Any]) -> None:
    values = {"kind": JobKind.COMPILE, "model": "f" * 64, **fields}
    with pytest.raises(RelaxcError) as caught:
        sqlite_backend.jobs.submit(ANN, JobRequest(**values))
    assert caught.value.http_status in (400, 404)
    assert sqlite_backend.jobs.list(ADMIN).jobs == ()


@pytest.fixture(scope="module")
def sqlite_backend(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Backend(tmp_path_factory.mktemp("cache")) as backend:
        yield backend


def test_bench_verify_and_tune_run_in_children(backend: Backend) -> None:
    model = upload(backend, ANN)
    artifact = end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend, model=model)).job.id).artifact
    for kind, chosen in ((JobKind.BENCH, None), (JobKind.VERIFY, model)):
        job = backend.jobs.submit(ANN, JobRequest(kind, artifact=artifact, model=chosen)).job
        job = end_of(backend, ANN, job.id)
        assert job.state is State.SUCCEEDED, job.error
        assert (job.result or {})["bytes"] > 1 << 20
        assert "looking at" in (log_of(backend, job.id) or "")
        assert job.to_dict()["target"] is None
    tuned = backend.jobs.submit(ANN, JobRequest(JobKind.TUNE, model=model, target="x86-64-v3", time_s=0.3)).job
    tuned = end_of(backend, ANN, tuned.id)
    assert (tuned.state, tuned.result) == (State.SUCCEEDED, {"gain": 1.5, "kept": ["JOB"], "records": None})
    assert tuned.progress == (30, 30)
    assert backend.jobs.file(ANN, tuned.id, "report.json").read_text() == '{"tasks": []}'
    assert backend.jobs.file(ANN, tuned.id, "curve.svg").read_text() == "<svg/>"
    with pytest.raises(JobNotFound):
        backend.jobs.file(ANN, tuned.id, "../../service.sqlite3")


@pytest.mark.sampled("sqlite")
@pytest.mark.skipif(landlock.version() < 1, reason="this kernel has no Landlock")
def test_no_job_changes_what_all_jobs_read_of_the_machine(
    open_backend: OpenBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache" / "peak").mkdir(parents=True)
    (tmp_path / "cache" / "peak" / "known.json").write_text("{}")
    monkeypatch.setenv("RELAXC_CACHE_DIR", str(tmp_path / "cache"))
    settings.cache_clear()
    try:
        backend = open_backend(entries=dict.fromkeys(ENTRIES, "tests.jobs.durable_entries:touch_peak"))
        model = upload(backend, ANN)
        made = end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend, model=model)).job.id).artifact
        for request in (JobRequest(JobKind.BENCH, artifact=made), JobRequest(JobKind.TUNE, model=model)):
            job = end_of(backend, ANN, backend.jobs.submit(ANN, request).job.id)
            can = {name: (job.result or {}).get(name) for name in ("read", "write")}
            assert can == {"read": True, "write": False}, job.error
    finally:
        settings.cache_clear()


def test_a_stop_queues_running_jobs_again_and_the_next_server_does_them(open_backend: OpenBackend) -> None:
    first = open_backend()
    request = asks(first, "made", sleep_s=4)
    id = first.jobs.submit(ANN, request).job.id
    until(State.RUNNING, first, id, "build")

    async def wait_and_stop() -> None:
        waiting = asyncio.create_task(first.jobs.wait(ANN, id))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(first.stop)
        with pytest.raises(ServiceError, match="shutting down"):
            await waiting

    asyncio.run(wait_and_stop())
    assert any("shutting down" in reason for reason in first.ready())
    first.close()
    second = open_backend()
    job = end_of(second, ANN, id)
    assert (job.state, job.attempts) == (State.SUCCEEDED, 1)
    assert [e.data["state"] for e in second.jobs.events(ANN, id) if e.data["event"] == "state"] == [
        "running",
        "queued",
        "running",
        "succeeded",
    ]


def test_drained_jobs_come_to_their_end(open_backend: OpenBackend) -> None:
    backend = open_backend()
    id = backend.jobs.submit(ANN, asks(backend, "made", sleep_s=1)).job.id
    until(State.RUNNING, backend, id)
    backend.stop(drain_s=PATIENCE_S)
    ended = backend.jobs.get(ANN, id)
    assert ended.state is State.SUCCEEDED, ended.error


def test_two_servers_share_the_work_and_the_story(open_backend: OpenBackend, tmp_path: Path) -> None:
    """One database, one cache folder: either starts the job, both see its events, either cancels it."""
    one, two = open_backend(), open_backend()
    id = one.jobs.submit(ANN, asks(one, "sleep")).job.id
    until(State.RUNNING, one, id, "build")
    assert len(follow_some(one, id, 3)) == len(follow_some(two, id, 3)) == 3
    other = two if one._scheduler.find(id) is not None else one
    other.jobs.cancel(ANN, id)
    assert end_of(one, ANN, id).state is end_of(two, ANN, id).state is State.CANCELLED


def test_old_jobs_and_models_that_nobody_has_are_swept(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from relaxc.service.config import Settings
    from relaxc.service.jobs.queue import sweep as module

    model = upload(backend, ANN)
    job = end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend, model=model)).job.id)
    folder = backend.blobs.local.root / "models" / f"sha256-{model}"
    backend.sweep()
    assert folder.is_dir()
    backend.models.remove(ANN, model)
    with pytest.raises(ModelNotFound):
        backend.models.remove(ANN, model)
    monkeypatch.setattr(module, "settings", lambda: Settings(job_expiry_s=1e-3, cache_dir=tmp_path))
    backend.sweep()
    assert not folder.exists()
    with pytest.raises(JobNotFound):
        backend.jobs.get(ANN, job.id)
    assert not (backend.blobs.local.root / "jobs" / job.id).exists()


def test_the_jobs_of_a_disabled_owner_take_no_place_in_the_queue(open_backend: OpenBackend) -> None:
    backend = open_backend(queue_max=4, workers=1)
    for owner in (ANN, BOB):
        backend.allowance.reserve(owner, "", 0)  # their rows
        backend.owners.change(owner.id, quotas={"running_jobs": 0})
    for seed in range(2):
        backend.jobs.submit(ANN, asks(backend, priority=seed, model=upload(backend, ANN, width=4 + seed)))
    assert backend.jobs.submit(BOB, asks(backend, owner=BOB)).origin is Origin.MISS
    wanted = asks(backend, owner=BOB, priority=1, model=upload(backend, BOB, width=6))
    with pytest.raises(Busy):
        backend.jobs.submit(BOB, wanted)
    backend.owners.change(ANN.id, disabled=True)
    assert backend.jobs.submit(BOB, wanted).origin is Origin.MISS


def test_owners_that_ask_for_all_they_can_leave_a_place_to_the_next(open_backend: OpenBackend) -> None:
    backend = open_backend(queue_max=8, workers=1)
    had = {}
    for name in ("k_ann", "k_bob", "k_carl", "k_dan"):
        owner = Owner(name, ANN.scopes)
        backend.allowance.reserve(owner, "", 0)  # its row
        backend.owners.change(name, quotas={"running_jobs": 0})
        model, count = upload(backend, owner), 0
        with contextlib.suppress(Busy, QuotaExceeded):
            while count < 9:
                backend.jobs.submit(owner, asks(backend, "made", owner=owner, model=model, weights_mib=count))
                count += 1
        had[name] = count
    assert had == {"k_ann": 4, "k_bob": 2, "k_carl": 1, "k_dan": 1}
