"""Samples that somebody sent: as many as there are, and nothing that is run or that is larger than it says."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxc.service.errors import InvalidOption
from relaxc.service.frontend.onnx import samples
from relaxc.service.frontend.onnx.samples import read_samples
from relaxc.service.signature import TensorSpec

SPECS = [TensorSpec("x", "float32", (2, 3)), TensorSpec("ids", "int64", ("batch", 4))]
X, IDS = np.arange(30, dtype="float32").reshape(5, 2, 3), np.arange(20).reshape(5, 4)


def written(folder: Path, **arrays: Any) -> Path:
    path = folder / "samples.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("own_axis", [False, True])
def test_samples_are_split(tmp_path: Path, own_axis: bool, compressed: bool) -> None:
    path = tmp_path / "samples.npz"
    x, ids = (X, IDS.reshape(5, 1, 4)) if own_axis else (X.reshape(10, 3), IDS)
    (np.savez_compressed if compressed else np.savez)(path, x=x, ids=ids)
    found = read_samples(path, SPECS)
    assert len(found) == 5
    np.testing.assert_array_equal(found[3]["x"], X[3])
    np.testing.assert_array_equal(found[3]["ids"], IDS[3:4])


def test_no_more_are_run_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_SAMPLES", 2)
    assert len(read_samples(written(tmp_path, x=X, ids=IDS), SPECS)) == 2


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an input is missing": ({"x": X}, "missing"),
    "another is there": ({"x": X, "ids": IDS, "y": X}, "too many"),
    "another dtype": ({"x": X.astype("float64"), "ids": IDS}, "the input is float32"),
    "objects": ({"x": np.array([{}], object), "ids": IDS}, "the input is float32"),
    "the other byte order": ({"x": X.astype(">f4"), "ids": IDS}, "the other byte order"),
    "a NaN": ({"x": np.where(X == 7, np.nan, X).astype("float32"), "ids": IDS}, "not finite"),
    "an infinity": ({"x": np.where(X == 7, np.inf, X).astype("float32"), "ids": IDS}, "not finite"),
    "Fortran's order": ({"x": np.asfortranarray(X), "ids": IDS}, "Fortran"),
    "another shape": ({"x": X[:, :, :2], "ids": IDS}, "a sample of x is"),
    "another rank": ({"x": X.reshape(-1), "ids": IDS}, "rank 1"),
    "half a batch": ({"x": X.reshape(10, 3)[:9], "ids": IDS}, "no whole batches"),
    "others than of another input": ({"x": X[:4], "ids": IDS}, "4 of x, 5 of ids"),
    "none": ({"x": X[:0], "ids": IDS[:0]}, "no samples"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused(what: str, tmp_path: Path) -> None:
    arrays, message = WRONG[what]
    with pytest.raises(InvalidOption, match=message):
        read_samples(written(tmp_path, **arrays), SPECS)


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    """Nor any member that is none of the inputs."""

    class Harm:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "harmed",)

    with pytest.raises(InvalidOption, match="the input is float32"):
        read_samples(written(tmp_path, x=np.array([Harm()], object), ids=IDS), SPECS)
    assert not (tmp_path / "harmed").exists()


def _zipped(path: Path, x: bytes) -> Path:
    ids = io.BytesIO()
    np.save(ids, IDS)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("ids.npy", ids.getvalue())
    return path


def _npy(header: str, data: bytes) -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize(
    "x",
    [
        b"",
        b"\x93NUMPY\x09\x00",
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 2, 3)}\n", b"1234"),
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2, 3)}\n", b"1234"),
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (5, 2, 3)}\n", b"1" * 500),
        _npy("__import__('os').abort()\n", b""),
        _npy("(" * 5000 + "\n", b""),
    ],
    ids=["empty", "version", "too large", "negative", "too long", "code", "nested"],
)
def test_a_header_that_lies_is_refused(x: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption):
        read_samples(_zipped(tmp_path / "samples.npz", x), SPECS)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_BYTES", 1 << 20)
    with pytest.raises(InvalidOption, match="at most 1048576 are read"):
        read_samples(_zipped(tmp_path / "samples.npz", bytes(2 << 20)), SPECS)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04" + bytes(100)])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "samples.npz").write_bytes(content)
    with pytest.raises(InvalidOption, match=r"no \.npz"):
        read_samples(tmp_path / "samples.npz", SPECS)
    with pytest.raises(InvalidOption, match=r"no \.npz"):
        read_samples(tmp_path / "none.npz", SPECS)


@pytest.mark.parametrize(
    "header", ["{'descr': '<f4', 'fortran_order': False, 'shape': (True, 30)}", "{[]: 1}", "{'descr': ('<f4',)}"]
)
def test_headers_that_are_none_are_named(tmp_path: Path, header: str) -> None:
    text = header.encode().ljust(117) + b"\n"
    path = written(tmp_path, ids=IDS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + X.tobytes())
    with pytest.raises(InvalidOption, match="samples of x"):
        read_samples(path, SPECS)


def test_a_sample_may_be_a_single_number(tmp_path: Path) -> None:
    found = read_samples(written(tmp_path, s=np.float32([1, 2, 3])), [TensorSpec("s", "float32", ())])
    assert [type(each["s"]) for each in found] == [np.ndarray] * 3 and found[2]["s"] == 3
