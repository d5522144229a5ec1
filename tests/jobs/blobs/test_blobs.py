"""Blobs in a folder, and mirrored in a bucket that moto serves over HTTP on a port of its own."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.config import Settings
from relaxc.service.errors import InvalidOption, StoreUnwritable
from relaxc.service.jobs import backend as backend_module
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.blobs.local import LocalBlobs, is_blob_name
from relaxc.service.jobs.blobs.mirrored import Blobs, open_blobs
from relaxc.service.jobs.database import artifacts, models, records
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobRow, ModelRow, RecordsRow
from relaxc.service.jobs.job import State
from relaxc.service.jobs.queue.bucket import BucketSweep
from relaxc.service.jobs.queue.retention import Place, Removed
from relaxc.service.request import ModelFormat
from tests.jobs.conftest import BY_SEED, ENTRIES, LIMITS
from tests.jobs.queue.test_desk import ANN, asks, end_of, log_of, upload
from tests.jobs.rows import put
from tests.s3 import CREDENTIALS, running_s3

BUCKET = "s3://relaxc-test/some/prefix"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 service with an empty bucket; credentials are in the environment."""
    pytest.importorskip("moto")
    with running_s3(tmp_path_factory.mktemp("moto") / "log") as url, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield url


@pytest.fixture
def blobs(s3: str, tmp_path: Path) -> Iterator[Blobs]:
    opened = open_blobs(BUCKET, tmp_path / "blobs", s3)
    yield opened
    opened.close()


def test_a_folder_that_others_empty_does_not_fail_who_puts(tmp_path: Path) -> None:
    """Two blobs of one folder come and go; the folder does as well, between any two system calls of the other."""
    local = LocalBlobs(tmp_path)
    errors: list[Exception] = []

    def put_and_remove(name: str) -> None:
        try:
            for _ in range(400):
                staged = local.staged()
                staged.touch()
                assert local.put(name, staged).read_bytes() == b""
                local.remove(name)
        except Exception as error:  # noqa: BLE001  # for the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=put_and_remove, args=(f"models/a/{name}",)) for name in "bc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_what_cannot_be_put_is_named(tmp_path: Path) -> None:
    local = LocalBlobs(tmp_path)
    with pytest.raises(StoreUnwritable, match="No such file"):
        local.put("models/a/b", tmp_path / "nothing")
    (tmp_path / "models").touch()
    staged = local.staged()
    staged.touch()
    with pytest.raises(StoreUnwritable, match=r"Not a directory|File exists"):
        local.put("models/a/b", staged)
    assert staged.exists()


@pytest.mark.parametrize("name", ["models/a/b.onnx", "jobs/j_1/log.txt", "models/x/wéights (1).bin"])
def test_names_of_blobs(name: str) -> None:
    assert is_blob_name(name)


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "models", "models/../x", "models/a/..", "models//x", "a/b/c/d/e", ".staging/x", "a/\0"]
)
def test_names_that_no_blob_has(name: str, tmp_path: Path) -> None:
    assert not is_blob_name(name)
    with pytest.raises(ValueError, match="no name"):
        LocalBlobs(tmp_path).path(name)


def test_what_is_put_is_found_until_it_is_removed(blobs: Blobs, tmp_path: Path) -> None:
    assert blobs.find("models/a/m") is None
    path = blobs.put_bytes("models/a/m", b"content")
    assert path.read_bytes() == b"content"
    path.unlink()
    found = blobs.find("models/a/m", hashlib.sha256(b"content").hexdigest())
    assert found is not None
    assert found.read_bytes() == b"content"
    blobs.remove("models/a/m")
    blobs.remove("models/a/m")
    assert blobs.find("models/a/m") is None
    assert not list((tmp_path / "blobs" / ".staging").iterdir())


def test_a_damaged_object_counts_as_lost(blobs: Blobs, tmp_path: Path) -> None:
    blobs.put_bytes("models/b/m", b"damaged").unlink()
    assert blobs.find("models/b/m", hashlib.sha256(b"content").hexdigest()) is None
    assert not list((tmp_path / "blobs" / ".staging").iterdir())


def test_a_large_file_goes_and_comes_in_parts(blobs: Blobs) -> None:
    data = bytes(range(256)) * (40 << 12)  # 40 MiB
    blobs.put_bytes("models/c/m", data).unlink()
    found = blobs.find("models/c/m", hashlib.sha256(data).hexdigest())
    assert found is not None
    assert found.stat().st_size == len(data)


@pytest.mark.parametrize(("url", "error"), [("s3://", InvalidOption), ("s3://no-such-bucket/x", StoreUnwritable)])
def test_a_bucket_that_is_not_there_is_said_at_the_start(
    s3: str, tmp_path: Path, url: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        open_blobs(url, tmp_path, s3)


@pytest.mark.slow
def test_another_host_finds_models_and_artifacts_in_the_bucket(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers of one database on two hosts: nothing is shared but the database and the bucket."""
    monkeypatch.setattr(backend_module, "settings", lambda: Settings(s3_endpoint_url=s3, cache_dir=tmp_path))
    options: dict[str, Any] = {
        "database_url": f"sqlite:///{tmp_path / 'shared.sqlite3'}",
        "blobs_url": "s3://relaxc-test/hosts",
        "limits": LIMITS,
        "entry": BY_SEED,
        "entries": ENTRIES,
    }
    with Backend(tmp_path / "one", **options) as one:
        model = upload(one, ANN)
        job = end_of(one, ANN, one.jobs.submit(ANN, asks(one, model=model, beside=1)).job.id)
        assert log_of(one, job.id) is not None
    with Backend(tmp_path / "two", **options) as two:
        assert not two.store.ls()
        with two.artifacts.open(ANN, str(job.artifact)) as opened:
            assert len(opened.entry.files) == 2
        two.store.verify(str(job.artifact))
        assert log_of(two, job.id) is not None
        with two.models.open(model) as reference:
            assert hashlib.sha256(reference.path.read_bytes()).hexdigest() == model
    with Backend(tmp_path / "three", **options) as three:
        submitted = three.jobs.submit(ANN, asks(three, model=model, beside=1))
        assert isinstance(submitted.job, JobRow)
        assert (submitted.job.state, submitted.job.artifact) == (State.SUCCEEDED, job.artifact)
        three.models.remove(ANN, model)
        three.sweep()
    with Backend(tmp_path / "four", **options) as four:
        assert four.blobs.find(f"models/{model}/model") is None


OLD, KNOWN = "0" * 64, "1" * 64


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'service.sqlite3'}")
    yield opened
    opened.close()


@pytest.fixture
def swept(blobs: Blobs, database: Database, tmp_path: Path) -> BucketSweep:
    """A bucket with an object of every kind that a row knows, and one that none does."""
    remote, text = blobs.remote, tmp_path / "text"
    assert remote is not None
    for each in remote.names(""):
        remote.remove(each.name)
    job = put(database).id
    with database.begin() as connection:
        artifacts.own(connection, "k_ann", KNOWN)
        records.insert(connection, RecordsRow("k_ann", KNOWN, "x", 1, 1, 0.0, 0.0, None))
        models.insert(connection, ModelRow("k_ann", KNOWN, "x", ModelFormat.ONNX, 1, 0.0, 0.0, ()), f"sha256-{KNOWN}")
    for name in both():
        text.write_text(KNOWN if name.endswith(f"{KNOWN}/artifact") else OLD)
        remote.put(name.replace("JOB", job), text)
    return BucketSweep(database, blobs, Removed())


def both() -> list[str]:
    kinds = ["jobs/{}/1-log.txt", "models/sha256-{}/model", "records/{}/records.jsonl"]
    kinds += ["artifacts/{}/model.so", "artifacts/{}/about.json", "keys/{}/artifact"]
    known = ["jobs/JOB/1-log.txt", *(kind.format(KNOWN) for kind in kinds[1:])]
    return [*known, *(kind.format(OLD) for kind in kinds)]


def test_a_bucket_is_swept_where_a_setting_says_so(
    swept: BucketSweep, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert blobs.remote is not None
    before = [each.name for each in blobs.remote.names("")]
    assert len(before) == len(both())
    swept()
    assert [each.name for each in blobs.remote.names("")] == before  # by default nothing goes
    changed = Settings(bucket_sweep_s=3600.0, cache_dir=tmp_path).model_copy(update={"orphan_expiry_s": -60.0})
    monkeypatch.setattr("relaxc.service.jobs.queue.bucket.settings", lambda: changed)
    swept()
    assert [each.name for each in blobs.remote.names("")] == [name for name in before if OLD not in name]
    counts = swept._removed.counts()
    assert {name: count for (place, name), count in counts.items() if place is Place.BUCKET} == {
        **dict.fromkeys(("jobs", "models", "records", "artifacts", "keys"), 1)
    }


def test_what_came_to_the_bucket_lately_stays(
    swept: BucketSweep, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its row comes after it."""
    assert blobs.remote is not None
    changed = Settings(bucket_sweep_s=3600.0, cache_dir=tmp_path)
    monkeypatch.setattr("relaxc.service.jobs.queue.bucket.settings", lambda: changed)
    swept()
    assert len(blobs.remote.names("")) == len(both())
