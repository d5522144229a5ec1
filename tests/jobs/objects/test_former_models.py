"""A server over the data of one from before migration 0003: models, jobs and artifacts of then, by either digest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from relaxc.service.artifact.key import key_for
from relaxc.service.errors import ModelNotFound
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database import artifacts
from relaxc.service.jobs.database.rows import JobKind, JobRequest, JobRow, Owner
from relaxc.service.jobs.job import Origin
from relaxc.service.jobs.objects.intake import Sent
from relaxc.service.lowering.target import resolve
from relaxc.service.request import CompileOptions, CompileRequest, ModelFormat, ModelRef, model_digest
from tests.api.conftest import make_onnx
from tests.jobs.database.before_0003 import former, former_tables, put_model, sha256
from tests.jobs.light_worker import BY_SEED
from tests.jobs.rows import put_id

ANN, BOB, EVE = (Owner(f"k_{name}", frozenset({"read", "compile"})) for name in ("ann", "bob", "eve"))
ADMIN = Owner("k_admin", frozenset({"admin"}))
TARGET = "x86-64-v3"
BUILD = {"stages": {}, "host": "then", "date": "then"}

_MODEL = onnx.load_from_string(make_onnx(8))
DATA = {"w.bin": _MODEL.graph.initializer[0].raw_data}
onnx.external_data_helper.set_external_data(_MODEL.graph.initializer[0], "w.bin")
_MODEL.graph.initializer[0].ClearField("raw_data")
OWN = _MODEL.SerializeToString()
BEFORE = former(OWN, DATA)
NOW = model_digest(sha256(OWN), {"w.bin": sha256(DATA["w.bin"])})
PLAIN = make_onnx(4)


def of_then(url: str, cache: Path) -> dict[str, str]:
    """Jobs of then that wait; Ann and Bob have the model with external data, and Ann one of a single file."""
    with former_tables(url) as database:
        put_model(database, BEFORE, (ANN.id, BOB.id), OWN, DATA, blobs=cache / "blobs")
        put_model(database, sha256(PLAIN), (ANN.id,), PLAIN, blobs=cache / "blobs")
        request = {"target": resolve(TARGET).to_dict(), "options": CompileOptions().to_dict()}
        return {digest: put_id(database, owner=ANN.id, model=digest, **request) for digest in (BEFORE, sha256(PLAIN))}


@pytest.fixture
def opened(open_backend: Callable[..., Backend], database_url: str, tmp_path: Path) -> tuple[Backend, dict[str, str]]:
    waiting = of_then(database_url, tmp_path / "cache")
    return open_backend(entry=BY_SEED), waiting


def stored(backend: Backend, digest: str, owner: Owner, content: bytes) -> str:
    """An artifact that `owner` had made then, with the default options, of the model that was named so."""
    model = ModelRef(ModelFormat.ONNX, digest, 1, Path("model"))
    library = backend.workspace.folder("then") / "model.so"
    library.write_bytes(content)
    entry = backend.store.put(key_for(CompileRequest(model, resolve(TARGET), CompileOptions())), [library], BUILD)
    with backend.database.begin() as connection:
        artifacts.own(connection, owner.id, entry.digest)
    return entry.digest


def asked(digest: str) -> JobRequest:
    return JobRequest(JobKind.COMPILE, model=digest, target=TARGET)


def end_of(backend: Backend, id: str) -> JobRow:
    return asyncio.run(backend.jobs.wait(ADMIN, id))


def test_models_and_jobs_of_then_go_on(opened: tuple[Backend, dict[str, str]]) -> None:
    backend, waiting = opened
    for digest, id in waiting.items():
        job = end_of(backend, id)
        assert (job.state.value, job.error) == ("succeeded", None)
        assert job.model == backend.models.get(ANN, digest).digest == (NOW if digest == BEFORE else digest)
        assert {row.id for row in backend.jobs.list(ANN, model=digest).jobs} == {id}
        backend.artifacts.open(ANN, str(job.artifact)).close()
    with backend.models.open(NOW) as model:
        assert (model.path.read_bytes(), model.digest) == (OWN, NOW)
        assert (model.path.parent / "w.bin").read_bytes() == DATA["w.bin"]
    assert backend.jobs.list(BOB, model=BEFORE).jobs == ()
    with pytest.raises(ModelNotFound):
        backend.models.get(EVE, BEFORE)


def test_a_format_that_a_child_made_up_then_misleads_no_job(
    database_url: str, tmp_path: Path, open_backend: Callable[..., Backend]
) -> None:
    with former_tables(database_url) as database:
        put_model(database, sha256(PLAIN), (EVE.id, ANN.id), PLAIN, blobs=tmp_path / "cache" / "blobs", format="pt2")
    with open_backend().models.open(sha256(PLAIN)) as model:
        assert (model.format, model.size_bytes) == (ModelFormat.ONNX, len(PLAIN))


def test_hits_of_then_are_hits_by_either_digest_for_whose_they_were(opened: tuple[Backend, dict[str, str]]) -> None:
    backend, waiting = opened
    for id in waiting.values():
        end_of(backend, id)
    backend.store.gc(0, grace_s=0)  # what these jobs have made
    artifact = stored(backend, BEFORE, ANN, b"then")
    plain = stored(backend, sha256(PLAIN), ANN, b"then, plain")
    for digest, made in ((BEFORE, artifact), (NOW, artifact), (sha256(PLAIN), plain)):
        submitted = backend.jobs.submit(ANN, asked(digest))
        assert (submitted.origin, submitted.job.artifact) == (Origin.HIT, made)
    assert backend.jobs.submit(BOB, asked(BEFORE)).origin is Origin.MISS  # nobody knows what model that was made of


def test_a_file_whose_sha256_is_an_alias_takes_nothing_from_whose_it_is(
    opened: tuple[Backend, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old digest was the SHA-256 of a text that is a file too: Eve sends it, her code runs in every child."""
    backend, waiting = opened
    for id in waiting.values():
        end_of(backend, id)
    backend.store.gc(0, grace_s=0)
    twin = OWN + b"w.bin\0" + len(DATA["w.bin"]).to_bytes(8, "little") + DATA["w.bin"]
    assert sha256(twin) == BEFORE
    (tmp_path / "net.onnx").write_bytes(twin)
    with monkeypatch.context() as patch:
        patch.setattr("relaxc.service.jobs.objects.models.check", lambda *_: None)
        row, _ = backend.models.add(EVE, Sent(tmp_path / "net.onnx", {"net.onnx": BEFORE}), name="evil")
    assert row.digest == BEFORE
    stored(backend, BEFORE, EVE, b"evil")
    with backend.models.open(BEFORE) as model:
        assert model.path.read_bytes() == twin
    assert backend.models.get(ANN, BEFORE).digest == NOW
    submitted = backend.jobs.submit(ANN, asked(BEFORE))
    assert (submitted.origin, submitted.job.model) == (Origin.MISS, NOW)


def test_the_same_model_sent_again_is_the_one_of_then(
    opened: tuple[Backend, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, _ = opened
    (tmp_path / "net.onnx").write_bytes(OWN)
    (tmp_path / "w.bin").write_bytes(DATA["w.bin"])
    coming = Sent(tmp_path / "net.onnx", {"net.onnx": sha256(OWN), "w.bin": sha256(DATA["w.bin"])})
    monkeypatch.setattr("relaxc.service.jobs.objects.models.check", lambda *_: None)
    row, created = backend.models.add(ANN, coming, name="again")
    assert (row.digest, row.size_bytes, created) == (NOW, len(OWN) + len(DATA["w.bin"]), False)
    row, created = backend.models.add(EVE, coming, name="too")
    assert (row.digest, created) == (NOW, True)
    with pytest.raises(ModelNotFound):
        backend.models.get(EVE, BEFORE)
    names = {folder.name for folder in (backend.blobs.local.root / "models").iterdir()}
    assert names == {BEFORE, sha256(PLAIN)}  # nothing is there twice


def test_bytes_of_then_are_removed_with_their_last_owner(opened: tuple[Backend, dict[str, str]]) -> None:
    backend, waiting = opened
    for id in waiting.values():
        end_of(backend, id)
    folder = backend.blobs.local.root / "models"
    assert {path.name for path in folder.iterdir()} == {BEFORE, sha256(PLAIN)}
    backend.sweep()
    backend.models.remove(ANN, BEFORE)
    backend.models.remove(BOB, NOW)
    backend.sweep()
    assert {path.name for path in folder.iterdir()} == {sha256(PLAIN)}


def test_an_artifact_of_then_is_verified_with_its_model(opened: tuple[Backend, dict[str, str]]) -> None:
    backend, waiting = opened
    artifact = end_of(backend, waiting[BEFORE]).artifact
    verify = JobRequest(JobKind.VERIFY, model=BEFORE, artifact=artifact)
    job = end_of(backend, backend.jobs.submit(ANN, verify).job.id)
    assert (job.result or {})["aliases"] == [BEFORE]
