"""Uploads, models and record sets by owner: over both databases, with a real child that identifies."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from relaxc.service.errors import (
    ArtifactNotFound,
    DigestMismatch,
    InvalidOption,
    InvalidRecords,
    ModelNotFound,
    ModelTooLarge,
    RecordsNotFound,
    RelaxcError,
    UploadConflict,
)
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database import artifacts, tables
from relaxc.service.jobs.database.rows import Owner
from relaxc.service.jobs.objects.intake import Sent
from relaxc.service.request import ModelFormat
from tests.api.conftest import make_onnx

ANN, BOB = (Owner(f"k_{name}", frozenset({"read", "compile"})) for name in ("ann", "bob"))
ADMIN = Owner("k_admin", frozenset({"admin"}))
MODEL = make_onnx(8)
SHA256 = hashlib.sha256(MODEL).hexdigest()

OpenBackend = Callable[..., Backend]


@pytest.fixture
def backend(open_backend: OpenBackend) -> Backend:
    return open_backend()


def send(backend: Backend, owner: Owner, data: bytes, sha256: str, offset: int = 0, total: int | None = None) -> None:
    with backend.uploads.open(owner, sha256, offset=offset, total=total or len(data)) as part:
        part.write(data)


def test_an_upload_in_parts_becomes_a_model(backend: Backend) -> None:
    half, total = len(MODEL) // 2, len(MODEL)
    assert backend.uploads.state(ANN, SHA256) is None
    send(backend, ANN, MODEL[:half], SHA256, total=total)
    state = backend.uploads.state(ANN, SHA256)
    assert state is not None
    assert (state.offset, state.total, state.complete) == (half, total, False)
    assert backend.uploads.state(BOB, SHA256) is None
    with pytest.raises(UploadConflict):
        backend.uploads.finish(ANN, SHA256)
    for offset in (0, half - 1, half + 1):
        with pytest.raises(UploadConflict) as caught:
            backend.uploads.open(ANN, SHA256, offset=offset, total=total)
        assert caught.value.fields["offset"] == half
    with pytest.raises(UploadConflict):
        backend.uploads.open(ANN, SHA256, offset=half, total=total + 1)
    send(backend, ANN, MODEL[half:], SHA256, offset=half, total=total)
    row, created = backend.uploads.finish(ANN, SHA256, name="net.onnx")
    assert created
    assert (row.digest, row.name, row.format, row.size_bytes) == (SHA256, "net.onnx", ModelFormat.ONNX, total)
    assert backend.uploads.state(ANN, SHA256) is None
    with backend.models.open(SHA256) as reference:
        assert reference.path.read_bytes() == MODEL
    assert not [path for path in (backend.blobs.local.root / "uploads").rglob("*") if path.is_file()]


def test_one_sender_at_a_time(backend: Backend) -> None:
    with backend.uploads.open(ANN, SHA256, offset=0, total=10) as part:
        part.write(b"123")
        with pytest.raises(UploadConflict):
            backend.uploads.open(ANN, SHA256, offset=3, total=10)
        with pytest.raises(UploadConflict):
            part.write(b"12345678")
        assert part.state.offset == 3
    backend.uploads.open(ANN, SHA256, offset=3, total=10).close()
    backend.uploads.remove(ANN, SHA256)
    assert backend.uploads.state(ANN, SHA256) is None


@pytest.mark.parametrize("data", [b"not the announced content", b""])
def test_other_content_than_announced_is_dropped(backend: Backend, data: bytes) -> None:
    send(backend, ANN, data, SHA256, total=len(data))
    with pytest.raises(DigestMismatch):
        backend.uploads.finish(ANN, SHA256)
    assert backend.uploads.state(ANN, SHA256) is None


def test_what_is_no_model_is_dropped(backend: Backend) -> None:
    data = os.urandom(1000)
    sha256 = hashlib.sha256(data).hexdigest()
    send(backend, ANN, data, sha256)
    with pytest.raises(RelaxcError) as caught:
        backend.uploads.finish(ANN, sha256)
    assert caught.value.code == "unknown-format"
    assert backend.uploads.state(ANN, sha256) is None
    assert backend.models.list(ADMIN) == []


@pytest.mark.parametrize("sha256", ["../../etc/passwd", "A" * 64, "a" * 63, "", "a" * 64 + "/x"])
def test_an_upload_has_a_digest_for_a_name(backend: Backend, sha256: str) -> None:
    with pytest.raises(InvalidOption):
        backend.uploads.open(ANN, sha256, offset=0, total=1)
    assert backend.uploads.state(ANN, sha256) is None
    with pytest.raises(UploadConflict):
        backend.uploads.finish(ANN, sha256)


def test_an_upload_over_the_limit_is_refused_before_it_comes(backend: Backend) -> None:
    with pytest.raises(ModelTooLarge):
        backend.uploads.open(ANN, SHA256, offset=0, total=1 << 50)
    with pytest.raises(InvalidOption):
        backend.uploads.open(ANN, SHA256, offset=-1, total=5)


def test_two_owners_of_one_model_keep_it_once_and_apart(backend: Backend) -> None:
    for owner in (ANN, BOB):
        send(backend, owner, MODEL, SHA256)
        assert backend.uploads.finish(owner, SHA256, name=f"{owner.id}.onnx")[1]
    send(backend, ANN, MODEL, SHA256)
    row, created = backend.uploads.finish(ANN, SHA256, name="other.onnx")
    assert (row.name, created) == ("k_ann.onnx", False)
    assert len(list((backend.blobs.local.root / "models").iterdir())) == 1
    backend.models.remove(ANN, SHA256)
    backend.sweep()
    with pytest.raises(ModelNotFound):
        backend.models.get(ANN, SHA256)
    assert backend.models.get(BOB, SHA256).name == "k_bob.onnx"
    with backend.models.open(SHA256) as reference:
        assert reference.path.read_bytes() == MODEL
    backend.models.remove(ADMIN, SHA256)
    backend.sweep()
    with pytest.raises(ModelNotFound), backend.models.open(SHA256):
        raise AssertionError


def test_external_data_stays_beside_its_model(backend: Backend, tmp_path: Path) -> None:
    import onnx

    folder = tmp_path / "sent"
    folder.mkdir()
    path = folder / "big model.onnx"
    onnx.save(
        onnx.load_from_string(MODEL),
        path,
        save_as_external_data=True,
        location="wéights (1).bin",
        size_threshold=0,
    )
    sha256s = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    row, _ = backend.models.add(ANN, Sent(path, sha256s), name="big model.onnx")
    assert row.digest not in sha256s.values()
    assert [file.name for file in backend.models.get(ANN, row.digest).files] == ["model", "wéights (1).bin"]
    with backend.models.open(row.digest) as reference:
        assert (reference.path.parent / "wéights (1).bin").stat().st_size == 8 * 8 * 4


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damaged_bytes_are_put_aside_and_come_back_with_the_next_upload(backend: Backend, damage: str) -> None:
    send(backend, ANN, MODEL, SHA256)
    backend.uploads.finish(ANN, SHA256)
    with backend.models.open(SHA256) as model:
        path = model.path
    if damage == "flip":
        path.write_bytes(MODEL[:20] + bytes([MODEL[20] ^ 1]) + MODEL[21:])
    elif damage == "cut":
        path.write_bytes(b"")
    else:
        path.unlink()
    with pytest.raises(ModelNotFound, match="gone or damaged") as refused, backend.models.open(SHA256):
        pass
    assert "Upload the model again" in str(refused.value.remedy)
    assert not backend.models.is_whole(SHA256)
    assert len(list(backend.blobs.local.root.glob(".quarantine/*"))) == (damage != "gone")
    send(backend, BOB, MODEL, SHA256)
    backend.uploads.finish(BOB, SHA256)
    with backend.models.open(SHA256) as model:
        assert model.path.read_bytes() == MODEL


def test_models_come_and_go_at_once(backend: Backend) -> None:
    """Senders and removers of one model, with a sweep between: who was told that it is kept can open it."""
    errors: list[BaseException] = []

    def send_and_remove(owner: Owner) -> None:
        try:
            for _ in range(5):
                send(backend, owner, MODEL, SHA256)
                backend.uploads.finish(owner, SHA256)
                with backend.models.open(SHA256) as reference:
                    assert reference.path.read_bytes() == MODEL
                backend.models.remove(owner, SHA256)
                backend.models.sweep()
        except BaseException as error:  # noqa: BLE001  # for the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=send_and_remove, args=(owner,)) for owner in (ANN, BOB)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_record_sets_are_kept_in_canonical_form(backend: Backend) -> None:
    from tests.records.samples import record

    one, two = record(), record(rule="cpu.other")
    text = f"{two.to_json()}\n{one.to_json()}\n".encode()
    row, created = backend.records.add(ANN, text, name="mine.jsonl")
    again, created_again = backend.records.add(ANN, f"{one.to_json()}\n{two.to_json()}\n".encode(), name="x")
    assert (created, created_again, again.used >= row.used) == (True, False, True)
    assert replace(again, used=row.used) == row
    assert (row.count, row.job, row.name) == (2, None, "mine.jsonl")
    kept = backend.records.read(ANN, row.digest)
    assert hashlib.sha256(kept).hexdigest() == row.digest
    assert sorted(kept.splitlines()) == sorted(text.splitlines())
    assert [each.digest for each in backend.records.list(ADMIN)] == [row.digest]
    assert backend.records.list(BOB) == []
    for digest in (row.digest, "f" * 64, "../x"):
        with pytest.raises(RecordsNotFound):
            backend.records.get(BOB, digest)


@pytest.mark.parametrize("text", [b"", b"{}\n", b"\xff\xfe", b"[1]\n", b'{"workload": 1}\n'])
def test_what_has_no_records_is_refused(backend: Backend, text: bytes) -> None:
    with pytest.raises(InvalidRecords):
        backend.records.add(ANN, text, name="x")
    assert backend.records.list(ADMIN) == []


def test_records_that_break_off_are_refused_and_told_to_their_sender_alone(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.records.samples import record

    whole = record().to_json()
    for text in (f"{whole}\n{whole[:-9]}", whole[:40]):
        with pytest.raises(InvalidRecords, match="breaks off") as caught:
            backend.records.add(ANN, text.encode(), name="x")
        assert str(backend.blobs.local.root) not in str(caught.value.to_dict())
    assert not caplog.records
    assert backend.records.list(ADMIN) == []
    assert backend.records.add(ANN, whole.encode(), name="without a line end")[0].count == 1


def test_a_fetch_is_noted_as_a_use(backend: Backend) -> None:
    with backend.database.begin() as connection:
        artifacts.own(connection, ANN.id, SHA256)
        connection.execute(sa.update(tables.artifacts).values(used=1.0))
    for _ in range(2):
        with pytest.raises(ArtifactNotFound):
            backend.artifacts.open(ANN, SHA256)
    (row,) = backend.artifacts.list(ANN)
    assert row.used > 1e9
    assert row.to_dict()["expires"] is None
