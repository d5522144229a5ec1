"""What a child says of a model, or leaves as an artifact, is believed for nobody but its own sender."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from relaxc.service.artifact.entry import sha256_of
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import ModelNotFound, StoreUnwritable, UnknownFormat
from relaxc.service.frontend.model_file import digest as local_digest
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.rows import JobKind, JobRequest, JobRow, ModelRow, Owner
from relaxc.service.jobs.objects.intake import Sent
from relaxc.service.request import CompileOptions, ModelFormat, canonical_json, model_digest
from tests.api.conftest import make_onnx
from tests.jobs.liars import BY_SEED, CLAIM, claiming, seed_of

ANN, EVE = (Owner(f"k_{name}", frozenset({"read", "compile"})) for name in ("ann", "eve"))
MODEL = make_onnx(8)
SHA256 = hashlib.sha256(MODEL).hexdigest()
DATA = "w.bin"

OpenBackend = Callable[..., Backend]


@pytest.fixture
def backend(open_backend: OpenBackend) -> Backend:
    return open_backend(entry=BY_SEED)


@pytest.fixture
def lied(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModelRow]:
    """Sends a file for Eve, whose code runs in the child that looks at it."""

    def send(content: bytes, folder: Path, data: dict[str, bytes] | None = None) -> ModelRow:
        with monkeypatch.context() as patch:
            patch.setattr("relaxc.service.jobs.objects.intake.CHECK_ENTRY", CLAIM)
            return backend.models.add(EVE, sent(folder, content, data), name="evil")[0]

    return send


def sent(folder: Path, content: bytes, data: dict[str, bytes] | None = None, *, name: str = "net.onnx") -> Sent:
    """A form's files, as they came."""
    folder.mkdir()
    files = {name: content, **(data or {})}
    for each, text in files.items():
        (folder / each).write_bytes(text)
    return Sent(folder / name, {each: hashlib.sha256(text).hexdigest() for each, text in files.items()})


def external() -> tuple[bytes, dict[str, bytes]]:
    """A model with its weights beside it."""
    model = onnx.load_from_string(MODEL)
    (weights,) = model.graph.initializer
    data = {DATA: weights.raw_data}
    onnx.external_data_helper.set_external_data(weights, DATA)
    weights.ClearField("raw_data")
    return model.SerializeToString(), data


def content_of(backend: Backend, digest: str) -> dict[str, bytes]:
    """The bytes of a model's files, its own first."""
    with backend.models.open(digest) as reference:
        others = sorted(path for path in reference.path.parent.iterdir() if path != reference.path)
        return {path.name: path.read_bytes() for path in (reference.path, *others)}


def test_a_digest_that_a_child_claims_gives_nobody_a_model(
    backend: Backend, lied: Callable[..., ModelRow], tmp_path: Path
) -> None:
    own, data = external()
    backend.models.add(ANN, sent(tmp_path / "ann", MODEL), name="mine")
    beside = backend.models.add(ANN, sent(tmp_path / "ann too", own, data), name="mine too")[0].digest
    for i, digest in enumerate((SHA256, beside)):
        row = lied(claiming(digest), tmp_path / f"eve {i}")
        assert row.digest == hashlib.sha256(claiming(digest)).hexdigest()
        with pytest.raises(ModelNotFound):
            backend.models.get(EVE, digest)
        with pytest.raises(ModelNotFound):
            backend.jobs.submit(EVE, JobRequest(JobKind.COMPILE, model=digest, target="x86-64-v3"))
    assert {row.digest for row in backend.models.list(EVE)}.isdisjoint({SHA256, beside})


def test_who_sends_later_gets_what_he_sent(backend: Backend, lied: Callable[..., ModelRow], tmp_path: Path) -> None:
    own, data = external()
    both = Sent(Path("m"), {"m": _sha256(own), DATA: _sha256(data[DATA])}).digest
    for i, digest in enumerate((SHA256, both)):
        lied(claiming(digest), tmp_path / f"eve {i}")
        lied(claiming(digest), tmp_path / f"eve too {i}", {DATA: b"evil"})
    backend.models.add(ANN, sent(tmp_path / "ann", MODEL), name="mine")
    assert list(content_of(backend, SHA256).values()) == [MODEL]
    row, created = backend.models.add(ANN, sent(tmp_path / "ann too", own, data), name="mine too")
    assert (row.digest, created) == (both, True)
    assert list(content_of(backend, both).values()) == [own, data[DATA]]


def test_what_a_child_says_of_a_model_is_not_told_to_others(
    backend: Backend, lied: Callable[..., ModelRow], tmp_path: Path
) -> None:
    own, data = external()
    lied(MODEL, tmp_path / "eve")
    lied(own, tmp_path / "eve too", data)
    for folder, files in (("ann", (MODEL, {})), ("ann too", (own, data))):
        row, _ = backend.models.add(ANN, sent(tmp_path / folder, *files, name="other.onnx"), name="mine")
        size = sum(map(len, (files[0], *files[1].values())))
        assert (row.format, row.size_bytes, row.name) == (ModelFormat.ONNX, size, "mine")
        assert [file.name for file in row.files] == ["model", *files[1]]  # no name that Eve has chosen


def test_a_file_in_the_form_of_a_list_of_files_is_no_model(
    backend: Backend, lied: Callable[..., ModelRow], tmp_path: Path
) -> None:
    """Its SHA-256 is the digest of the model that it lists."""
    own, data = external()
    row, _ = backend.models.add(ANN, sent(tmp_path / "ann", own, data), name="mine")
    twin = canonical_json({"data": {DATA: _sha256(data[DATA])}, "model": _sha256(own)}).encode()
    assert _sha256(twin) == row.digest
    with pytest.raises(UnknownFormat):
        lied(twin, tmp_path / "eve")
    with pytest.raises(ModelNotFound):
        backend.models.get(EVE, row.digest)


def test_a_file_that_changes_while_a_child_looks_at_it_is_not_kept(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it could where a job has neither Landlock nor a user of its own."""
    coming = sent(tmp_path / "eve", MODEL)
    with monkeypatch.context() as patch:
        patch.setattr("relaxc.service.jobs.objects.models.check", lambda *_: coming.path.write_bytes(b"evil"))
        with pytest.raises(StoreUnwritable):
            backend.models.add(EVE, coming, name="evil")
    with pytest.raises(ModelNotFound):
        backend.models.get(EVE, SHA256)
    backend.models.add(ANN, sent(tmp_path / "ann", MODEL), name="mine")
    assert list(content_of(backend, SHA256).values()) == [MODEL]


@pytest.mark.parametrize(
    "data", [{}, {DATA: b""}, {"model": b"x", "model_": b"y"}, {"wéights (1).bin": b"x", "a": b""}]
)
def test_a_digest_is_of_all_names_and_bytes(tmp_path: Path, data: dict[str, bytes]) -> None:
    one = sent(tmp_path / "one", MODEL, data)
    same = sent(tmp_path / "same", MODEL, dict(reversed(data.items())), name="other.onnx")
    assert one.digest == same.digest == model_digest(SHA256, {name: _sha256(text) for name, text in data.items()})
    assert list(one.files) == list(same.files)
    assert len({file.name for file in one.files}) == len(data) + 1
    others = [sent(tmp_path / "more", MODEL, {**data, "more": b""})]
    others += [sent(tmp_path / "bytes", MODEL, {**data, name: text + b"!"}) for name, text in [*data.items()][:1]]
    others += [
        sent(tmp_path / "name", MODEL, {f"{other}!" if other == name else other: text for other, text in data.items()})
        for name in [*data][:1]
    ]
    assert len({other.digest for other in others} | {one.digest}) == len(others) + 1


def test_a_command_line_names_a_model_as_the_server_does(tmp_path: Path) -> None:
    own, data = external()
    coming = sent(tmp_path / "sent", own, data)
    assert local_digest(coming.path, ModelFormat.ONNX).digest == coming.digest != _sha256(own)
    plain = sent(tmp_path / "plain", MODEL)
    assert local_digest(plain.path, ModelFormat.ONNX).digest == plain.digest == SHA256


def compiled(backend: Backend, owner: Owner, lie: str) -> JobRow:
    """A finished job whose child lies, or is honest, with weights beside the library."""
    options = CompileOptions(seed=seed_of(lie), shapes=(("beside", (1,)),))
    asked = JobRequest(JobKind.COMPILE, model=SHA256, target="x86-64-v3", options=options)
    job = backend.jobs.submit(owner, asked).job
    return asyncio.run(backend.jobs.wait(owner, job.id))


@pytest.mark.parametrize("lie", ["other_weights", "no_weights", "other_name", "other_model"])
def test_nobody_is_given_files_that_another_put_under_the_digest_of_his_library(
    backend: Backend, tmp_path: Path, lie: str
) -> None:
    for owner in (ANN, EVE):
        backend.models.add(owner, sent(tmp_path / owner.id, MODEL), name="m")
    evil = compiled(backend, EVE, lie)
    assert (evil.error or {}).get("code") == "compile-failed"
    assert str(backend.store.root) not in str(evil.error)
    assert backend.store.ls() == []
    honest = compiled(backend, ANN, "made")
    with backend.artifacts.open(ANN, str(honest.artifact)) as opened:
        library, weights = opened.entry.paths
        assert Manifest.read(library).weights.sha256 == sha256_of(weights)


def test_the_record_of_a_build_has_no_words_of_its_child(backend: Backend, tmp_path: Path) -> None:
    for owner in (ANN, EVE):
        backend.models.add(owner, sent(tmp_path / owner.id, MODEL), name="m")
    first = compiled(backend, EVE, "boast")
    assert compiled(backend, ANN, "boast").artifact == first.artifact  # from the store
    build = (compiled(backend, ANN, "boast").result or {})["build"]
    assert build["stages"] == {"build": 0.1}
    assert build.keys() == {"stages", "date", "waited_s"}
    assert "evil" not in json.dumps(build)
    assert (compiled(backend, ANN, "mumble").error or {}).get("code") == "compile-failed"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
