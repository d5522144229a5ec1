"""Copies of finished artifacts."""

from __future__ import annotations

import errno
import os
import resource
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from relaxc.service.artifact import compiled
from relaxc.service.artifact.compiled import CompiledArtifact, EarlyCopy, check_output
from relaxc.service.errors import InvalidOption


def early(tmp_path: Path) -> tuple[EarlyCopy, CompiledArtifact, Path]:
    """A copy that has begun, of an artifact that the store has moved since."""
    folder, store, output = tmp_path / "job", tmp_path / "store", tmp_path / "out" / "m.so"
    for each in (folder, store, output.parent):
        each.mkdir()
    files = [folder / "model.so", folder / "model.weights"]
    for file in files:
        file.write_bytes(file.suffix.encode() * 1000)
    copy = EarlyCopy(output)
    copy.begin(files)
    manifest: Any = SimpleNamespace(weights=SimpleNamespace(sha256=""))
    moved = tuple(file.rename(store / file.name) for file in files)
    return copy, CompiledArtifact("", moved[0], moved, manifest, {}, False), output


def test_an_early_copy_is_placed_once_the_store_has_the_artifact(tmp_path: Path) -> None:
    copy, made, output = early(tmp_path)
    assert not output.exists()
    placed = copy.finish(made)
    copy.drop()
    assert placed.files == (output, output.with_suffix(".weights"))
    assert [file.read_bytes() for file in placed.files] == [file.read_bytes() for file in made.files]
    assert output.stat().st_mode & 0o777 == 0o755
    assert sorted(output.parent.iterdir()) == sorted(placed.files)


def test_of_an_early_copy_that_is_dropped_nothing_stays(tmp_path: Path) -> None:
    copy, _, output = early(tmp_path)
    copy.drop()
    assert list(output.parent.iterdir()) == []


def test_an_early_copy_that_was_dropped_does_not_begin(tmp_path: Path) -> None:
    """The job's thread may be that far behind, where a second Ctrl-C ends the wait for it."""
    file, output = tmp_path / "model.so", tmp_path / "out" / "m.so"
    file.write_bytes(b"artifact")
    output.parent.mkdir()
    copy = EarlyCopy(output)
    copy.drop()
    copy.begin([file])
    for thread in threading.enumerate():
        if thread.name.startswith("copy"):
            thread.join()
    assert list(output.parent.iterdir()) == []


def test_where_an_early_copy_fails_the_stored_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: BinaryIO, _: Path) -> None:
        source.close()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(compiled, "_copied_beside", full)
        copy, made, output = early(tmp_path)
        placed = copy.finish(made)
    copy.drop()
    assert sorted(output.parent.iterdir()) == sorted(placed.files)
    assert output.read_bytes() == made.path.read_bytes()


def test_a_disk_that_is_full_is_the_outputs(tmp_path: Path) -> None:
    """Where it ends in the middle of a file the error has the source's name first, which is in the store."""
    copy, made, output = early(tmp_path)
    copy.drop()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        with pytest.raises(InvalidOption) as caught:
            made.copy_to(output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value).startswith(f"cannot write {output}: File too large")
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["a" * 300 + ".so", "none/m.so", "file/m.so", "/proc/m.so", "."])
def test_an_output_that_cannot_be_written_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidOption) as caught:
        check_output(tmp_path / name)
    assert str(caught.value).startswith(f"cannot write {tmp_path / name}: ")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_is_not_ours_is_refused_before_the_work(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes anywhere")
    tmp_path.chmod(0o555)
    with pytest.raises(InvalidOption, match=f"cannot write {tmp_path}/m.so: Permission denied"):
        check_output(tmp_path / "m.so")


@pytest.mark.parametrize("letter", ["a", "ä"])
def test_the_longest_name_is_written(tmp_path: Path, letter: str) -> None:
    copy, made, output = early(tmp_path)
    copy.drop()
    longest = output.with_name(letter * (252 // len(letter.encode())) + ".so")
    check_output(longest)
    one = replace(made, files=made.files[:1])
    assert one.copy_to(longest).path.read_bytes() == made.path.read_bytes()
    early_copy = EarlyCopy(longest)
    early_copy.begin(one.files)
    assert early_copy.finish(one).path == longest
    assert list(output.parent.iterdir()) == [longest]
