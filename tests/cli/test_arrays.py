"""Arrays by name to files and back, bfloat16 and awkward names among them."""

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from relaxc.service.cli.arrays import read_npz, replacing, write_npz
from relaxc.service.errors import InputError, InputType, InvalidOption
from relaxc.service.signature import Signature, TensorSpec

SIGNATURE = Signature(
    (TensorSpec("x", "float32", (2,)), TensorSpec("b", "bfloat16", (3,)), TensorSpec("c", "uint8", (3,), "int4")), ()
)


def test_arrays_come_back_in_order_with_their_dtypes(tmp_path: Path) -> None:
    arrays = {
        "x": np.arange(2, dtype=np.float32),
        "file": np.array(True),
        "b": np.array([1, 2, 3], ml_dtypes.bfloat16),
        "c": np.array([-8, -1, 7], ml_dtypes.int4),
        "a/b.c": np.zeros((0, 4), np.int64),
    }
    write_npz(tmp_path / "a.npz", arrays)
    again = read_npz(tmp_path / "a.npz", SIGNATURE)
    assert list(again) == list(arrays)
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_array_equal(again[name], array)


def test_numpy_reads_what_we_write_and_we_read_what_numpy_writes(tmp_path: Path) -> None:
    write_npz(tmp_path / "ours.npz", {"x": np.ones(2, np.float32)})
    np.testing.assert_array_equal(np.load(tmp_path / "ours.npz")["x"], np.ones(2, np.float32))
    np.savez_compressed(tmp_path / "theirs.npz", x=np.ones(2, np.float32))
    assert read_npz(tmp_path / "theirs.npz", SIGNATURE)["x"].dtype == np.float32


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones(2))
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npz").touch()
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    for name in ("one.npy", "text.npz", "empty.npz", "cut.npz", "missing.npz"):
        with pytest.raises(InputError):
            read_npz(tmp_path / name, SIGNATURE)


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputType, match="Python objects"):
        read_npz(tmp_path / "objects.npz", SIGNATURE)
    with zipfile.ZipFile(tmp_path / "damaged.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00\x04\x00oops")
    with pytest.raises(InputType, match="'x'"):
        read_npz(tmp_path / "damaged.npz", SIGNATURE)


def _npz(path: Path, content: bytes, method: int = zipfile.ZIP_STORED) -> bytearray:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", content)
    return bytearray(path.read_bytes())


def _header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _stream(path: Path) -> None:
    data = _npz(path, bytes(range(256)) * 64, zipfile.ZIP_DEFLATED)
    data[40:60] = b"\xff" * 20
    path.write_bytes(data)


def _in_both_headers(path: Path, offset: int, value: int) -> None:
    """Set a field of a zip's headers, which the local one has two bytes before the central one."""
    data = _npz(path, b"x")
    data[4 + offset] = value
    data[data.index(b"PK\x01\x02") + 6 + offset] = value
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        _stream,
        lambda path: _in_both_headers(path, 2, 1),  # encrypted
        lambda path: _in_both_headers(path, 4, 77),  # an unknown method
        lambda path: _npz(path, _header("{'descr': '<f4', 'fortran_order': False, 'shape': (1, }\n")),
        lambda path: _npz(path, _header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 60},)}}\n")),
    ],
)
def test_a_damaged_npz_is_refused_by_name(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path = tmp_path / "bad.npz"
    damage(path)
    with pytest.raises(InputError, match="bad"):
        read_npz(path, SIGNATURE)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no regular file"):
        read_npz(tmp_path / "pipe", SIGNATURE)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise KeyError("stop")
    assert path.read_bytes() == b"old"
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.bin"]


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot write"), replacing(tmp_path / "nowhere" / "out.bin"):
        pass


def test_what_is_no_regular_file_stays_and_is_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with replacing(pipe) as temporary:
        temporary.write_bytes(b"whole")
    reader.join()
    assert read == [b"whole"] and pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="it is a folder"), replacing(tmp_path):
        raise AssertionError
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}.*"))
