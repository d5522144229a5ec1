"""Digests of the blocks of an artifact, in its last section: of every byte of the file, and of the weights beside it.

`.relaxc.blocks` is a header (magic, bytes of a block, of the file and of the weights beside it, SHA-256 of the
manifest), the SHA-256 of that header, then a SHA-256 for each block of what is before the section, one for all that is
behind it, and one for each block of the weights beside the file. strip(1) makes another file of an artifact: its size
says so, and what it keeps is checked part by part.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import BinaryIO

from relaxc.service.artifact.elf import NewSection, Section, read_sections
from relaxc.service.artifact.identity import identity_of
from relaxc.service.artifact.manifest import (
    BLOCKS_SECTION,
    MANIFEST_SECTION,
    WEIGHTS,
    Manifest,
    check_code,
    digest_of,
    weights_extent,
)
from relaxc.service.errors import ArtifactCorrupt

__all__ = ["blocks_section", "check_file", "seal"]

_FIELDS = struct.Struct("<8sQQQ32s")
_MAGIC = b"RELAXC1\0"
_BLOCK = 1 << 20
_SHA256 = 32
_HEADER_BYTES = _FIELDS.size + _SHA256
_FEW = 4
"""Blocks that are hashed sooner than threads are started."""

_CHECKED: set[tuple[int, ...]] = set()
_MOST_CHECKED = 10_000

Extent = tuple[int, int]
"""The bytes `start .. end` of a file."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a file with this section consists of, and the file of the weights beside it."""

    path: Path
    section: Section
    manifest: Section
    beside: Path | None

    @staticmethod
    def of(path: Path, sections: Mapping[str, Section], beside: Path | None) -> _Parts:
        return _Parts(path, sections[BLOCKS_SECTION], sections[MANIFEST_SECTION], beside)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.path.stat().st_size, self.beside.stat().st_size if self.beside else 0

    def extents(self) -> list[tuple[Path, Extent]]:
        """Return what each digest is of, in the order of the section."""
        end = self.section.offset + self.section.size_bytes
        own = [*_blocks(self.section.offset), (end, self.sizes[0])]
        return [*zip(repeat(self.path), own), *zip(repeat(self.beside or self.path), _blocks(self.sizes[1]))]

    def manifest_digest(self) -> bytes:
        return hashlib.sha256(_content(self.path, self.manifest)).digest()

    def header(self) -> bytes:
        fields = _FIELDS.pack(_MAGIC, _BLOCK, *self.sizes, self.manifest_digest())
        return fields + hashlib.sha256(fields).digest()


def blocks_section(beside: Path | None) -> NewSection:
    """Return room for the section of an artifact with the weights `beside` it, to append last; `seal` fills it."""

    def write(file: BinaryIO) -> None:
        count = len(_blocks(file.tell())) + 1 + (len(_blocks(beside.stat().st_size)) if beside else 0)
        file.write(bytes(_HEADER_BYTES + _SHA256 * count))

    return NewSection(BLOCKS_SECTION, 8, write)


def seal(path: Path, beside: Path | None) -> None:
    """Write the digests into the section of the artifact at `path`, which was appended last."""
    parts = _Parts.of(path, read_sections(path), beside)
    text = parts.header() + b"".join(_digests(parts.extents()))
    assert len(text) == parts.section.size_bytes
    with path.open("r+b") as file:
        file.seek(parts.section.offset)
        file.write(text)


def check_file(path: Path, manifest: Manifest) -> tuple[Path, Section]:
    """Return where the weights are, as `weights_extent` does.

    Raise ArtifactCorrupt where a byte of the artifact at `path`, or of weights beside it, is not what was packed.
    All cores hash, and a file that a process has seen is not read again until it changes. Of a file that an older
    version packed only the code is checked. Raise ArtifactNotFound where the weights are gone.
    """
    sections = read_sections(path)
    weights, extent = weights_extent(path, manifest)
    if BLOCKS_SECTION not in sections:
        if WEIGHTS in manifest.digests:
            raise ArtifactCorrupt(f"{path} is damaged: it has no {BLOCKS_SECTION}", path=str(path))
        _check_code(path, manifest)
        return weights, extent
    parts = _Parts.of(path, sections, weights if weights != path else None)
    seen = tuple(number for file in (path, weights) for number in identity_of(file))
    if seen not in _CHECKED:
        _check_bytes(parts, manifest, weights, extent)
        if len(_CHECKED) >= _MOST_CHECKED:
            _CHECKED.clear()
        _CHECKED.add(seen)
    return weights, extent


def _check_bytes(parts: _Parts, manifest: Manifest, weights: Path, extent: Section) -> None:
    text = _content(parts.path, parts.section)
    if _is_rewritten(text, parts.sizes[0]):
        _check_parts(parts, manifest, text, weights, extent)
    else:
        _check_blocks(parts, text)


def _is_rewritten(text: bytes, size: int) -> bool:
    """Whether a tool has written the file anew: a header that is whole says that it had another size."""
    fields, digest = text[: _FIELDS.size], text[_FIELDS.size : _HEADER_BYTES]
    return hashlib.sha256(fields).digest() == digest and _FIELDS.unpack(fields)[2] != size


def _check_blocks(parts: _Parts, text: bytes) -> None:
    path, extents = parts.path, parts.extents()
    wanted = [text[start : start + _SHA256] for start in range(_HEADER_BYTES, len(text), _SHA256)]
    if text[:_HEADER_BYTES] != parts.header() or len(wanted) != len(extents):
        raise ArtifactCorrupt(f"{path} is damaged: its digests are not those of such a file", path=str(path))
    for (file, (start, end)), found, expected in zip(extents, _digests(extents), wanted, strict=True):
        if found != expected:
            raise ArtifactCorrupt(f"{file} is damaged: its bytes {start} to {end - 1} changed", path=str(file))


def _check_parts(parts: _Parts, manifest: Manifest, text: bytes, weights: Path, extent: Section) -> None:
    path = parts.path
    if _FIELDS.unpack(text[: _FIELDS.size])[4] != parts.manifest_digest():
        raise ArtifactCorrupt(f"{path} is damaged: its manifest changed", path=str(path))
    _check_code(path, manifest)
    if digest_of(weights, extent.offset, extent.size_bytes) != manifest.weights.sha256:
        raise ArtifactCorrupt(f"{weights} is damaged: its weights changed", path=str(weights))


def _check_code(path: Path, manifest: Manifest) -> None:
    for place in range(len(manifest.targets)):
        check_code(path, manifest, place)


def _digests(extents: Sequence[tuple[Path, Extent]]) -> Iterator[bytes]:
    """The SHA-256 of each, in order; hashlib lets other threads run."""
    if len(extents) <= _FEW:
        yield from map(_digest, extents)
        return
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from pool.map(_digest, extents)


def _digest(extent: tuple[Path, Extent]) -> bytes:
    path, (start, end) = extent
    return bytes.fromhex(digest_of(path, start, end - start))


def _blocks(size_bytes: int) -> list[Extent]:
    return [(start, min(start + _BLOCK, size_bytes)) for start in range(0, size_bytes, _BLOCK)]


def _content(path: Path, section: Section) -> bytes:
    with path.open("rb") as file:
        file.seek(section.offset)
        return file.read(section.size_bytes)
