"""The form of the kernel cache: object files by the digest of all that their code depends on.

ROOT/ab/abcd….o     a mark, the SHA-256 of key and object, the object; mtime is the last use

Only `jobs.kernels` writes there, in a process that reads no model (docs/security.md, 'Kernels').
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

__all__ = ["MAX_OBJECT_BYTES", "Record", "is_object", "kernel_key", "packed", "path_of", "read_object", "records"]

MAX_OBJECT_BYTES = 64 << 20
_MARK = b"relaxc kernel 1\n"
_HEAD = len(_MARK) + 32
_RECORD = struct.Struct("!32s?Q")
_ELF = b"\x7fELF"


def kernel_key(toolchain: str, target: bytes, text: bytes) -> str:
    """Return the key, 64 hex digits, of the kernel `text` for a target, both in their canonical form.

    `toolchain` names all else that the code depends on: the versions of TVM and LLVM, and our lowering.
    """
    parts = (toolchain.encode(), target, text)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def path_of(root: Path, key: str) -> Path:
    """Return where the object of this key is."""
    return root / key[:2] / f"{key}.o"


def packed(key: str, content: bytes) -> bytes:
    """Return the file of an object."""
    return _MARK + _check(key, content) + content


def read_object(root: Path, key: str) -> bytes | None:
    """Return the object of this key, every byte checked; None where there is none that is whole."""
    try:
        with path_of(root, key).open("rb") as file:
            data = file.read(_HEAD + MAX_OBJECT_BYTES + 1)
    except OSError:
        return None
    content = data[_HEAD:]
    return content if data[:_HEAD] == _MARK + _check(key, content) else None


def _check(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).digest()


def is_object(content: bytes) -> bool:
    """Return whether it is an ELF file of 64 bits, little-endian, that ends with the table of its sections or later."""
    if len(content) < 64 or content[:6] != _ELF + b"\x02\x01" or len(content) > MAX_OBJECT_BYTES:
        return False
    sections, size, count = struct.unpack_from("<Q10xHH", content, 0x28)
    return bool(sections > 0 and count > 0 and sections + size * count <= len(content))


@dataclass(frozen=True, slots=True)
class Record:
    """A line of a builder's journal: an object that it made, or, without one, the key of one that it found."""

    key: str
    content: bytes | None

    def write(self, file: BinaryIO) -> None:
        """Append it. Raise OSError where it cannot be written whole."""
        content = self.content or b""
        file.write(_RECORD.pack(bytes.fromhex(self.key), self.content is not None, len(content)) + content)
        file.flush()


def records(number: int) -> Iterator[Record]:
    """Yield the records of the journal that is open as `number`, up to the first that is not whole."""
    place, end = 0, os.fstat(number).st_size
    while place + _RECORD.size <= end:
        key, made, size = _RECORD.unpack(os.pread(number, _RECORD.size, place))
        place += _RECORD.size
        if size > MAX_OBJECT_BYTES or place + size > end:
            return
        content = os.pread(number, size, place)
        if len(content) != size:
            return
        yield Record(key.hex(), content if made else None)
        place += size
