"""The kernel cache's form: an object is read whole and as it was written, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxc.service.lowering.kernel_cache import Record, is_object, kernel_key, packed, path_of, read_object, records
from tests.lowering.object_files import elf

KEY, OTHER = kernel_key("tools", b"target", b"text"), kernel_key("tools", b"target", b"other")


def put(root: Path, key: str, data: bytes) -> Path:
    path = path_of(root, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_every_part_of_the_key_changes_it() -> None:
    keys = {KEY, OTHER, kernel_key("tools 2", b"target", b"text"), kernel_key("tools", b"target 2", b"text")}
    # What ends one part and begins the next is no matter of bytes that are moved between them.
    keys |= {kernel_key("tools", b"targett", b"ext"), kernel_key("toolst", b"arget", b"text")}
    assert len(keys) == 6


def test_an_object_is_read_as_it_was_written(tmp_path: Path) -> None:
    put(tmp_path, KEY, packed(KEY, elf()))
    assert read_object(tmp_path, KEY) == elf()
    assert read_object(tmp_path, OTHER) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:70] + bytes([data[70] ^ 1]) + data[71:],
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda data: b"",
        lambda data: b"relaxc kernel 9\n" + data[16:],
    ],
    ids=["truncated", "longer", "a bit of the object", "a bit of the digest", "empty", "another form"],
)
def test_a_damaged_object_is_none(damage, tmp_path: Path) -> None:
    put(tmp_path, KEY, damage(packed(KEY, elf())))
    assert read_object(tmp_path, KEY) is None


def test_an_object_under_the_name_of_another_is_none(tmp_path: Path) -> None:
    put(tmp_path, OTHER, packed(KEY, elf()))
    assert read_object(tmp_path, OTHER) is None


def test_what_is_no_whole_object_file_is_none() -> None:
    assert is_object(elf())
    assert not is_object(elf()[:-1])
    assert not is_object(b"\x7fELF")
    assert not is_object(b"#!" + elf()[2:])


def test_a_journal_is_read_up_to_the_first_record_that_is_not_whole(tmp_path: Path) -> None:
    written = [Record(KEY, elf(b"one")), Record(OTHER, None), Record(OTHER, elf(b"two"))]
    with (tmp_path / "journal").open("w+b") as file:
        for record in written:
            record.write(file)
        assert list(records(file.fileno())) == written
        for size in (1, 100):
            file.truncate(file.seek(0, 2) - size)
            assert list(records(file.fileno())) == written[:2]
