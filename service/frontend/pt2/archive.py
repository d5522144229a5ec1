"""Reading a `.pt2` zip that somebody else wrote: nothing is extracted, unpickled or believed before it is checked."""

from __future__ import annotations

import json
import mmap
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import ModelMalformed, ModelNotFound, ModelTooLarge, ModelUnsafe, UnsupportedModel

__all__ = ["Archive"]

_MAX_ENTRIES = 100_000
_MAX_JSON_BYTES = 512 << 20
# deflate reaches 1032:1 on zeros. Weights hardly shrink and JSON by less than 50:1, so a large entry over this is a
# bomb; torch itself stores without compression.
_MAX_RATIO = 200
_RATIO_FROM_BYTES = 1 << 20
_ENCRYPTED = 0x1
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_FORMATS = {b"0"}


class Archive:
    """The entries of a `.pt2`, by their path below the archive's root folder.

    Raises ModelNotFound; ModelMalformed for a damaged zip; ModelUnsafe for a path that leaves the archive;
    ModelTooLarge over `max_model_bytes` or `max_unpacked_bytes`; UnsupportedModel for a version from the future.
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        """Maps the file; `writable` gives a private copy of each page that is written to."""
        self.path = path
        self._map = _open(path, writable)
        try:
            with zipfile.ZipFile(path) as archive:
                infos = [info for info in archive.infolist() if not info.is_dir()]
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            ValueError,
            EOFError,
            struct.error,
            UnicodeDecodeError,
        ) as error:
            raise ModelMalformed(f"{path.name} is not a whole zip archive: {error}") from error
        self._entries = _entries(path.name, infos, len(self._map))
        self._check_format()

    def names(self, folder: str = "") -> list[str]:
        """Return the entries below `folder` (given with its slash), in the archive's order."""
        return [name for name in self._entries if name.startswith(folder)]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, name: str) -> memoryview:
        """Return the bytes of an entry: a view of the mapped file where it is stored uncompressed. Raise
        ModelMalformed.
        """
        info = self._info(name)
        packed = self._packed(info)
        data = packed if info.compress_type == zipfile.ZIP_STORED else _inflate(info, packed)
        if len(data) != info.file_size:
            raise ModelMalformed(f"entry {name} has {len(data)} bytes, its header says {info.file_size}", entry=name)
        if zlib.crc32(data) != info.CRC:
            raise ModelMalformed(f"entry {name} is damaged: its checksum differs", entry=name)
        return data

    def size(self, name: str) -> int:
        """Return the unpacked size of an entry in bytes."""
        return int(self._info(name).file_size)

    def json(self, name: str) -> Any:
        """Return an entry as JSON values. Raise ModelMalformed, or ModelTooLarge for an unreasonable size."""
        info = self._info(name)
        if info.file_size > _MAX_JSON_BYTES:
            raise ModelTooLarge(f"entry {name} has {info.file_size} bytes of JSON; at most {_MAX_JSON_BYTES} are read")
        try:
            return json.loads(bytes(self.read(name)).decode())
        except (ValueError, RecursionError) as error:
            raise ModelMalformed(f"entry {name} is not JSON: {str(error)[:200]}", entry=name) from error

    def _info(self, name: str) -> zipfile.ZipInfo:
        if name not in self._entries:
            raise ModelMalformed(f"{self.path.name} has no entry {name}", entry=name)
        return self._entries[name]

    def _packed(self, info: zipfile.ZipInfo) -> memoryview:
        """The entry's bytes in the file. The central directory is believed where the local header agrees."""
        view = memoryview(self._map)
        header = view[info.header_offset : info.header_offset + 30]
        if len(header) < 30:
            raise ModelMalformed(f"entry {info.filename} begins after the end of the file")
        magic, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        if magic != b"PK\x03\x04":
            raise ModelMalformed(f"entry {info.filename} has no local header")
        start = info.header_offset + 30 + name_bytes + extra_bytes
        packed = view[start : start + info.compress_size]
        if len(packed) != info.compress_size:
            raise ModelMalformed(f"entry {info.filename} ends after the end of the file")
        return packed

    def _check_format(self) -> None:
        for name, wanted in (("archive_format", {b"pt2"}), ("archive_version", _FORMATS)):
            if name not in self._entries:
                raise UnsupportedModel(
                    f"{self.path.name} has no entry {name}: it is no archive that torch.export.save of torch 2.7 "
                    "or later wrote",
                    remedy="Load it with the torch that wrote it, and save it again with a current one.",
                )
            found = bytes(self.read(name)) if self._entries[name].file_size < 64 else b"?"
            if found not in wanted:
                raise UnsupportedModel(f"{self.path.name} has {name} {found!r}; known are {sorted(wanted)}")
        if "byteorder" in self._entries and bytes(self.read("byteorder")[:16]) != b"little":
            raise UnsupportedModel(f"{self.path.name} was written on a big-endian machine")


def _open(path: Path, writable: bool) -> mmap.mmap:
    if not path.is_file():
        raise ModelNotFound(f"there is no file {path}", path=str(path))
    size, limit = path.stat().st_size, settings().max_model_bytes
    if size > limit:
        raise ModelTooLarge(f"{path.name} has {size} bytes; RELAXC_MAX_MODEL_BYTES allows {limit}", limit_bytes=limit)
    if size == 0:
        raise ModelMalformed(f"{path.name} is empty")
    with path.open("rb") as file:
        # A private writable mapping counts against RLIMIT_DATA, a read-only one does not.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY if writable else mmap.ACCESS_READ)


def _entries(archive: str, infos: list[zipfile.ZipInfo], size: int) -> dict[str, zipfile.ZipInfo]:
    if not infos:
        raise ModelMalformed(f"{archive} is an empty archive")
    if len(infos) > _MAX_ENTRIES:
        raise ModelTooLarge(f"{archive} has {len(infos)} entries; at most {_MAX_ENTRIES} are read")
    root = infos[0].orig_filename.split("/")[0]
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        _check_entry(info)
        if info.header_offset + info.compress_size > size:
            raise ModelMalformed(f"entry {info.filename!r} ends after the end of the file", entry=info.filename)
        folder, _, name = info.filename.partition("/")
        if folder != root or not name:
            raise ModelMalformed(f"entry {info.filename!r} is not below {root!r} as the others are")
        if name in found:
            raise ModelMalformed(f"entry {info.filename!r} is there twice", entry=name)
        found[name] = info
    unpacked, limit = sum(info.file_size for info in infos), settings().max_unpacked_bytes
    if unpacked > limit:
        raise ModelTooLarge(
            f"{archive} unpacks to {unpacked} bytes; RELAXC_MAX_UNPACKED_BYTES allows {limit}",
            size_bytes=unpacked,
            limit_bytes=limit,
        )
    return found


def _check_entry(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    parts = name.split("/")
    if "\0" in name or "\\" in name or ":" in name or any(part in ("", ".", "..") for part in parts):
        raise ModelUnsafe(f"entry {name!r} has a path that could leave the archive", entry=name)
    if info.flag_bits & _ENCRYPTED:
        raise ModelMalformed(f"entry {name!r} is encrypted", entry=name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ModelMalformed(f"entry {name!r} has compression method {info.compress_type}", entry=name)
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise ModelMalformed(f"entry {name!r} is stored, but has two sizes", entry=name)
    if info.file_size > _RATIO_FROM_BYTES and info.file_size > _MAX_RATIO * max(info.compress_size, 1):
        raise ModelTooLarge(
            f"entry {name!r} would unpack to {info.file_size} bytes from {info.compress_size}", entry=name
        )


def _inflate(info: zipfile.ZipInfo, packed: memoryview) -> memoryview:
    """The bytes in memory of their own, never more than the size in the header and one."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        return memoryview(bytearray(inflater.decompress(packed, info.file_size + 1)))
    except zlib.error as error:
        raise ModelMalformed(f"entry {info.filename} does not inflate: {error}", entry=info.filename) from error
