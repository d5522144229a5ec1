"""Digests of blocks: no bit of an artifact changes unnoticed, wherever it is."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from relaxc.service.artifact import blocks
from relaxc.service.artifact.blocks import check_file
from relaxc.service.artifact.elf import read_sections
from relaxc.service.artifact.manifest import BLOCKS_SECTION, Manifest, weights_extent
from relaxc.service.artifact.packing import Built, pack, pack_parts
from relaxc.service.errors import ArtifactCorrupt, ArtifactError, ArtifactNotFound

EMBED = 1 << 30


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, and no memory of files that were seen."""
    monkeypatch.setattr(blocks, "_BLOCK", 4096)
    monkeypatch.setattr(blocks, "_CHECKED", set())


@pytest.fixture(params=["inside", "beside", "two parts"])
def files(request: pytest.FixtureRequest, tmp_path: Path, library: Path, manifest: Manifest) -> list[Path]:
    """An artifact, with its weights in it or not, or with a second part."""
    weights = {"w": np.random.default_rng(0).standard_normal((40, 100)), "v": np.arange(3, dtype=np.int32)}
    out, most = tmp_path / "m.so", 0 if request.param == "beside" else EMBED
    if request.param == "two parts":
        return pack_parts([Built(library, weights, manifest)] * 2, out, embed_max_bytes=most)
    return pack(library, weights, manifest, out, embed_max_bytes=most)


def checked(path: Path) -> None:
    check_file(path, Manifest.read(path))


def flipped(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def test_a_whole_artifact_passes(files: list[Path]) -> None:
    checked(files[0])


def test_no_bit_changes_unnoticed(files: list[Path]) -> None:
    chance = random.Random(7)
    section = read_sections(files[0])[BLOCKS_SECTION]
    places = [(file, chance.randrange(file.stat().st_size)) for file in files for _ in range(120)]
    places += [(files[0], section.offset + at) for at in range(0, section.size_bytes, 3)]
    places += [(files[0], at) for at in (4, 5, 16, 0x28, 0x3C, 0x3E, files[0].stat().st_size - 1)]
    for file, place in places:
        bit = chance.randrange(8)
        flipped(file, place, bit)
        with pytest.raises(ArtifactError):
            checked(files[0])
        flipped(file, place, bit)
    checked(files[0])


def test_a_file_that_lost_its_section_is_not_taken_for_an_old_one(files: list[Path]) -> None:
    data = files[0].read_bytes()
    files[0].write_bytes(data.replace(BLOCKS_SECTION.encode(), b".relaxc.blockt"))
    with pytest.raises(ArtifactCorrupt, match=r"no \.relaxc\.blocks"):
        checked(files[0])


def test_an_artifact_that_was_stripped_is_the_same_and_its_weights_are_still_checked(files: list[Path]) -> None:
    subprocess.run(["strip", files[0]], check=True)
    checked(files[0])
    where, section = weights_extent(files[0], Manifest.read(files[0]))
    flipped(where, section.offset + section.size_bytes // 2, 0)
    with pytest.raises(ArtifactCorrupt, match="weights"):
        checked(files[0])


def test_weights_that_are_gone_are_missed(files: list[Path]) -> None:
    for file in files[1:]:
        file.unlink()
        with pytest.raises(ArtifactNotFound):
            checked(files[0])


def test_a_file_is_read_once_until_it_changes(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    checked(files[0])
    read: list[int] = []
    digest = blocks._digest
    monkeypatch.setattr(blocks, "_digest", lambda extent: read.append(1) or digest(extent))
    checked(files[0])
    assert not read
    os.utime(files[0])
    checked(files[0])
    assert read
