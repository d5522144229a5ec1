"""What the store keeps of an artifact and of a key, with strict reading back from disk."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from relaxc.service.artifact.decode import Fields
from relaxc.service.artifact.identity import identity_of
from relaxc.service.artifact.key import Key
from relaxc.service.errors import ArtifactCorrupt
from relaxc.service.request import canonical_json

__all__ = [
    "ENTRY_FILE",
    "Entry",
    "Explanation",
    "Opened",
    "StoredFile",
    "StoredKey",
    "is_digest",
    "known_sha256",
    "remember",
    "sha256_of",
]

ENTRY_FILE = "entry.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_KNOWN = 10_000
_KNOWN: dict[tuple[int, ...], str] = {}
"""The SHA-256 of files that this process has read, by their identity."""


def is_digest(text: str) -> bool:
    """Return whether this is a SHA-256 in lower-case hex."""
    return _DIGEST.fullmatch(text) is not None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, which this process reads once until its identity changes."""
    identity = identity_of(path)
    found = _KNOWN.get(identity)
    if found is None:
        found = sha256_of(path)
        remember(identity, found)
    return found


def remember(identity: tuple[int, ...], sha256: str) -> None:
    """Spare `known_sha256` the reading of a file whose bytes this process has hashed, or written and hashed."""
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[identity] = sha256


def _load(path: Path) -> Fields:
    try:
        return Fields(json.loads(path.read_bytes()), path.name)
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactCorrupt(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of an artifact, by name inside its folder."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key that was put, and what it led to. `build` holds stage times, host and date."""

    key: Key
    artifact: str
    build: Mapping[str, Any]

    def to_json(self) -> str:
        """Return the key's file."""
        return canonical_json({"artifact": self.artifact, "entries": dict(self.key.entries), "build": self.build})

    @staticmethod
    def read(path: Path) -> StoredKey:
        """Return the key in this file. Raise ArtifactCorrupt."""
        fields = _load(path)
        found = StoredKey(Key.of(fields.table("entries")), fields.take("artifact", str), fields.take("build", dict))
        fields.done()
        if found.key.digest != path.stem or not is_digest(found.artifact):
            raise ArtifactCorrupt(f"{path} is not the key it is named for")
        return found


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored artifact: `digest` is the SHA-256 of `files[0]`, the shared library, whose manifest covers the others.

    `used_at` is in seconds since the epoch. `build` is of the key that found it, empty when it was found by digest.
    """

    digest: str
    folder: Path
    files: tuple[StoredFile, ...]
    used_at: float
    build: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[StoredKey, ...] = ()

    @property
    def path(self) -> Path:
        """The shared library."""
        return self.folder / self.files[0].name

    @property
    def paths(self) -> list[Path]:
        """Every file, the shared library first."""
        return [self.folder / file.name for file in self.files]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    def check(self, sha256: Callable[[Path], str] = known_sha256) -> Entry:
        """Return itself. Raise ArtifactCorrupt where a file has other bytes than it was put with."""
        wrong = [file.name for file in self.files if sha256(self.folder / file.name) != file.sha256]
        if wrong:
            raise ArtifactCorrupt(f"artifact {self.digest} is damaged: {', '.join(wrong)}", digest=self.digest)
        return self

    def to_json(self) -> str:
        """Return the file that describes the folder, in it."""
        return canonical_json({"files": [[file.name, file.size_bytes, file.sha256] for file in self.files]})

    @staticmethod
    def read(folder: Path) -> Entry:
        """Return the artifact in this folder, its files' sizes checked. Raise ArtifactCorrupt."""
        fields = _load(folder / ENTRY_FILE)
        files = tuple(_file(folder, row) for row in fields.take("files", list))
        fields.done()
        if not files or files[0].sha256 != folder.name:
            raise ArtifactCorrupt(f"{folder} is not the artifact it is named for")
        return Entry(folder.name, folder, files, (folder / ENTRY_FILE).stat().st_mtime)


def _file(folder: Path, row: Any) -> StoredFile:
    match row:
        case [str(name), int(size), str(sha256)] if Path(name).name == name and is_digest(sha256):
            path = folder / name
            if path.is_file() and path.stat().st_size == size:
                return StoredFile(name, size, sha256)
            raise ArtifactCorrupt(f"{path} is not there, or has another size than {size}")
    raise ArtifactCorrupt(f"{folder / ENTRY_FILE} is damaged")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a key is or is not in the store: the stored key nearest to it, and entry → (stored value, wanted value)."""

    hit: bool
    nearest: StoredKey | None
    differences: Mapping[str, tuple[str | None, str | None]]


class Opened:
    """An artifact that is not removed until `close`, the end of a `with`, or the end of the process."""

    def __init__(self, entry: Entry, handle: int) -> None:
        self.entry = entry
        self._handle: int | None = handle

    @property
    def path(self) -> Path:
        """The shared library."""
        return self.entry.path

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
