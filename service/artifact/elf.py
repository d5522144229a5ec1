"""Sections of an ELF file: read bounds-checked from untrusted files, and appended without a copy in memory.

objcopy is not used: BFD takes every section whose name begins with `.rela` (as `.relaxc` does) for a relocation
table and drops its alignment, and it holds the whole of a section in memory.
Layout: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from relaxc.service.errors import ArtifactCorrupt, ArtifactNotFound

__all__ = ["NewSection", "Section", "append_sections", "loaded_digest", "read_sections"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_ENTRY = struct.Struct("<IIQQQQIIQQ")
_IDENT = b"\x7fELF\x02\x01\x01"  # 64-bit, little-endian, version 1: x86-64 and aarch64
_ET_DYN = 3
_SHT_NULL, _SHT_PROGBITS, _SHT_NOBITS = 0, 1, 8
_MAX_NAMES_BYTES = 1 << 20
_SEGMENT = struct.Struct("<IIQQQQQQ")
_PT_LOAD = 1
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Section:
    """The bytes `offset .. offset + size_bytes` of a file."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NewSection:
    """A section to append: `write` writes its contents at the file's position, a multiple of `align` (a power of 2)."""

    name: str
    align: int
    write: Callable[[BinaryIO], None]


@dataclass(frozen=True, slots=True)
class _Table:
    header: tuple[int, ...]
    entries: tuple[tuple[int, ...], ...]
    names: bytes

    @property
    def names_index(self) -> int:
        return self.header[13]

    def name(self, entry: tuple[int, ...]) -> str:
        start = entry[0]
        end = self.names.find(b"\0", start)
        if start >= len(self.names) or end < 0:
            raise ArtifactCorrupt("the ELF file's section names are damaged")
        return self.names[start:end].decode("utf-8", "replace")


def read_sections(path: Path) -> dict[str, Section]:
    """Return every section of the ELF shared library at `path` by name, each checked to lie inside the file.

    Raise ArtifactNotFound, and ArtifactCorrupt for what is not a whole 64-bit little-endian shared library.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe is waited for
            raise ArtifactCorrupt("this is no regular file")
        with path.open("rb") as file:
            table, size = _read_table(file), file.seek(0, os.SEEK_END)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactNotFound(f"there is no file {path}", path=str(path)) from error
    except ArtifactCorrupt as error:
        raise ArtifactCorrupt(f"{path}: {error.message}", path=str(path)) from error
    except OSError as error:
        raise ArtifactCorrupt(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    sections = {}
    for entry in table.entries:
        if entry[1] not in (_SHT_NULL, _SHT_NOBITS):  # strip(1) makes ours SHT_RELA, for their name
            if entry[4] + entry[5] > size:
                raise ArtifactCorrupt(f"{path} is truncated: a section ends after the file", path=str(path))
            sections[table.name(entry)] = Section(entry[4], entry[5])
    return sections


def loaded_digest(path: Path) -> str:
    """Return the SHA-256 of what the dynamic loader maps of the library at `path`: its PT_LOAD segments, one by one.

    Where the section table is, which `append_sections` and strip(1) change, counts as zero. Raise ArtifactCorrupt.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        header = _HEADER.unpack(_read_at(file, 0, _HEADER.size, size))
        if header[0][: len(_IDENT)] != _IDENT or header[1] != _ET_DYN or header[9] != _SEGMENT.size:
            raise ArtifactCorrupt("this is not a 64-bit little-endian ELF shared library")
        segments = list(_SEGMENT.iter_unpack(_read_at(file, header[5], header[10] * _SEGMENT.size, size)))
        digest.update(_HEADER.pack(*header[:6], 0, *header[7:12], 0, 0))
        for offset, count in ((row[2], row[5]) for row in segments if row[0] == _PT_LOAD):
            for start in range(max(offset, _HEADER.size), offset + count, _BLOCK):
                digest.update(_read_at(file, start, min(_BLOCK, offset + count - start), size))
    return digest.hexdigest()


def _read_table(file: BinaryIO) -> _Table:
    size = file.seek(0, os.SEEK_END)
    header = _HEADER.unpack(_read_at(file, 0, _HEADER.size, size))
    if header[0][: len(_IDENT)] != _IDENT or header[1] != _ET_DYN:
        raise ArtifactCorrupt("this is not a 64-bit little-endian ELF shared library")
    offset, entry_size, count, names_index = header[6], header[11], header[12], header[13]
    if entry_size != _ENTRY.size or not 0 < names_index < count:
        raise ArtifactCorrupt("the ELF file has no section table")
    entries = tuple(_ENTRY.iter_unpack(_read_at(file, offset, count * _ENTRY.size, size)))
    names = entries[names_index]
    if names[5] > _MAX_NAMES_BYTES:
        raise ArtifactCorrupt("the ELF file's section names are too long")
    return _Table(header, entries, _read_at(file, names[4], names[5], size))


def _read_at(file: BinaryIO, offset: int, count: int, size: int) -> bytes:
    if offset + count > size:
        raise ArtifactCorrupt("the ELF file is truncated")
    file.seek(offset)
    return file.read(count)


def append_sections(library: Path, out: Path, sections: Sequence[NewSection]) -> None:
    """Write `library` with `sections` appended, in order, to `out`; they are not loaded into memory by the linker.

    The section table and its names move to the end of the file; the code is not touched. Raise ArtifactCorrupt
    when `library` is no ELF shared library or has a section of one of these names.
    """
    with library.open("rb") as file:
        table = _read_table(file)
    taken = {table.name(entry) for entry in table.entries} & {section.name for section in sections}
    if taken:
        raise ArtifactCorrupt(f"{library} has sections {', '.join(sorted(taken))} already")
    shutil.copyfile(library, out)
    with out.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        _append(file, table, sections)


def _append(file: BinaryIO, table: _Table, sections: Sequence[NewSection]) -> None:
    entries, names = list(table.entries), table.names
    for section in sections:
        start = _pad_to(file, section.align)
        section.write(file)
        entries.append((len(names), _SHT_PROGBITS, 0, 0, start, file.tell() - start, 0, 0, section.align, 0))
        names += section.name.encode() + b"\0"
    old = entries[table.names_index]
    entries[table.names_index] = (*old[:4], file.tell(), len(names), *old[6:])
    file.write(names)
    header = list(table.header)
    header[6], header[12] = _pad_to(file, 8), len(entries)
    file.write(b"".join(_ENTRY.pack(*entry) for entry in entries))
    file.seek(0)
    file.write(_HEADER.pack(*header))


def _pad_to(file: BinaryIO, align: int) -> int:
    file.write(b"\0" * (-file.tell() % align))
    return file.tell()
