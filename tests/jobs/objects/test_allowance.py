"""What an owner may have, at the server's door: uploads have room before they come, and no two the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial

import pytest

from relaxc.service.errors import ArtifactNotFound, QuotaExceeded, RecordsNotFound, StorageQuotaExceeded, UploadConflict
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database import instances
from relaxc.service.jobs.database.rows import JobKind, JobRequest, Owner
from relaxc.service.jobs.job import Origin
from relaxc.service.jobs.objects.intake import Sent
from relaxc.service.jobs.objects.part import Part
from relaxc.service.request import CompileOptions
from tests.api.conftest import make_onnx
from tests.jobs.at_once import at_once
from tests.jobs.queue.test_desk import asks, end_of, upload
from tests.records.samples import record

ANN, BOB = (Owner(f"k_{name}", frozenset({"read", "compile", "tune"})) for name in ("ann", "bob"))
MIB = 1 << 20

OpenBackend = Callable[..., Backend]


@pytest.fixture
def backend(open_backend: OpenBackend) -> Backend:
    return open_backend()


def allow(backend: Backend, **own: float | str) -> None:
    """Quotas of Ann's own."""
    backend.allowance.reserve(ANN, "", 0)  # her row
    backend.owners.change(ANN.id, quotas=own)


def use(backend: Backend, name: str = "bytes") -> float:
    """What Ann has of it."""
    return float(backend.allowance.describe(ANN.id)["quotas"][name]["used"])


def test_an_upload_has_its_room_from_the_first_byte_to_the_last(backend: Backend) -> None:
    allow(backend, bytes=4000)
    data = os.urandom(3000)
    sha256 = hashlib.sha256(data).hexdigest()
    with backend.uploads.open(ANN, sha256, offset=0, total=3000) as part:
        part.write(data[:1000])
    assert use(backend) == 3000
    with pytest.raises(StorageQuotaExceeded) as refused:
        backend.uploads.open(ANN, "a" * 64, offset=0, total=1001)
    assert refused.value.fields == {"quota": "bytes", "limit": 4000, "used": 3000, "asked": 1001}
    assert backend.uploads.state(ANN, "a" * 64) is None
    backend.uploads.open(BOB, "a" * 64, offset=0, total=1001).close()
    backend.uploads.open(ANN, "a" * 64, offset=0, total=1000).close()
    with backend.uploads.open(ANN, sha256, offset=1000, total=3000) as part:  # it has its room
        part.write(data[1000:])
    backend.uploads.remove(ANN, "a" * 64)
    assert use(backend) == 3000
    backend.uploads.remove(ANN, sha256)
    assert use(backend) == 0


def test_a_model_counts_once_and_not_when_it_is_forgotten(backend: Backend) -> None:
    digest = upload(backend, ANN)
    size = use(backend)
    assert size == backend.models.get(ANN, digest).size_bytes
    allow(backend, bytes=size)
    assert upload(backend, ANN) == digest  # over the whole way, though it is hers
    with pytest.raises(StorageQuotaExceeded):
        upload(backend, ANN, width=8)
    backend.models.remove(ANN, digest)
    assert use(backend) == 0


def test_an_upload_that_was_given_up_gives_its_room_back(backend: Backend) -> None:
    allow(backend, bytes=1000)
    with backend.uploads.open(ANN, "a" * 64, offset=0, total=1000) as part:
        part.write(b"x")
        path = part.path
    os.utime(path, (1.0, 1.0))
    assert backend.uploads.sweep(60.0) == 1
    assert use(backend) == 1000  # another server's may have been touched a moment ago
    assert backend.uploads.sweep(-60.0) == 0
    assert use(backend) == 0


def test_of_requests_at_once_no_more_are_admitted_than_the_quota_has(open_backend: OpenBackend) -> None:
    """On two servers: twelve compiles where three may wait, twelve tunings where there is time for two."""
    one, two = open_backend(workers=1), open_backend("other", workers=1)
    allow(one, queued_jobs=3, running_jobs=0, tuning_hours=2)
    model = upload(one, ANN)

    def ask(number: int, kind: JobKind) -> None:
        time_s = 3600.0 if kind is JobKind.TUNE else None
        options = CompileOptions(seed=number)
        request = JobRequest(kind, model=model, target="x86-64-v3", options=options, time_s=time_s)
        (one if number % 2 else two).jobs.submit(ANN, request)

    for kind, quota, admitted in ((JobKind.TUNE, "tuning_hours", 2), (JobKind.COMPILE, "queued_jobs", 1)):
        refused = at_once(12, partial(ask, kind=kind))
        assert [type(error) for error in refused] == [QuotaExceeded] * (12 - admitted)
        assert {error.fields["quota"] for error in refused if isinstance(error, QuotaExceeded)} == {quota}
    assert (use(one, "queued_jobs"), use(one, "tuning_hours"), use(one, "running_jobs")) == (3, 2, 0)
    assert all(isinstance(error, QuotaExceeded) and "retry_after_s" in error.fields for error in refused)


def test_an_artifact_counts_for_each_owner_and_is_forgotten_by_each(backend: Backend) -> None:
    job = end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend)).job.id)
    digest = str(job.artifact)
    [made] = backend.artifacts.list(ANN)
    assert (made.digest, made.size_bytes > MIB) == (digest, True)
    model = upload(backend, ANN)
    assert use(backend) == made.size_bytes + backend.models.get(ANN, model).size_bytes
    hit = backend.jobs.submit(BOB, asks(backend, owner=BOB))
    assert hit.origin is Origin.HIT
    backend.artifacts.remove(ANN, digest)
    with pytest.raises(ArtifactNotFound):
        backend.artifacts.remove(ANN, digest)
    assert backend.artifacts.list(ANN) == []
    backend.artifacts.open(BOB, digest).close()
    allow(backend, bytes=MIB)
    with pytest.raises(StorageQuotaExceeded):  # the store has it, and it does not fit
        backend.jobs.submit(ANN, asks(backend))
    assert backend.jobs.list(ANN).jobs[0].id == job.id
    with pytest.raises(RecordsNotFound):
        backend.records.remove(ANN, "a" * 64)


def test_a_compile_whose_artifact_does_not_fit_fails_and_says_so(backend: Backend) -> None:
    allow(backend, bytes=MIB)
    job = end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend)).job.id)
    assert (job.state, job.artifact) == ("failed", None)
    assert job.error is not None
    assert (job.error["code"], job.error["fields"]["limit"]) == ("storage-quota-exceeded", MIB)
    assert backend.artifacts.list(ANN) == []


def test_what_the_store_has_dropped_counts_nothing(backend: Backend) -> None:
    job = end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend)).job.id)
    [made] = backend.artifacts.list(ANN)
    backend.artifacts.measure()
    assert backend.artifacts.list(ANN) == [made]
    backend.store.gc(0, grace_s=-1)
    backend.artifacts.measure()
    assert [row.size_bytes for row in backend.artifacts.list(ANN)] == [0]
    end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend)).job.id)
    assert job.artifact in [row.digest for row in backend.artifacts.list(ANN)]
    assert sum(row.size_bytes for row in backend.artifacts.list(ANN)) == made.size_bytes


def test_what_was_on_its_way_to_a_server_that_is_gone_is_forgotten(open_backend: OpenBackend) -> None:
    one, two = open_backend(), open_backend("other")
    allow(one, bytes=100)
    with one.allowance.room(ANN, 60, MIB) as (_, most), pytest.raises(StorageQuotaExceeded):
        assert most == MIB
        one.sweep()
        two.allowance.reserve(ANN, "a" * 64, 60)
    assert use(one) == 0
    with two.allowance.room(ANN, None, MIB) as (_, most):
        assert (most, use(one)) == (100, 100)
        with two.database.begin() as connection:  # as others do with a dead one
            instances.forget(connection, two._keeper.id)
        one.sweep()
        assert use(one) == 0


def test_nothing_is_kept_of_what_does_not_fit(backend: Backend) -> None:
    model = make_onnx(4, seed=9)
    sent = backend.workspace.folder("sent") / "m.onnx"
    sent.write_bytes(model)
    allow(backend, bytes=10)
    with pytest.raises(StorageQuotaExceeded):
        backend.models.add(ANN, Sent(sent, {"m.onnx": hashlib.sha256(model).hexdigest()}), name="m")
    with pytest.raises(StorageQuotaExceeded):
        backend.records.add(ANN, record().to_json().encode(), name="r")
    assert [path for path in backend.blobs.local.root.rglob("*") if path.is_file()] == []


def test_an_upload_begun_at_once_with_several_sizes_has_one(backend: Backend) -> None:
    allow(backend, bytes=110)
    parts: list[Part] = []

    def begin(number: int) -> None:
        parts.append(backend.uploads.open(ANN, "a" * 64, offset=0, total=100 + number))

    refused = at_once(8, begin)
    for part in parts:
        part.close()
    assert [type(error) for error in refused] == [UploadConflict] * 7
    assert use(backend) == parts[0].state.total
