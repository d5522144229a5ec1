"""The kernel cache on disk: what builders noted is put away, and the least recently used goes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxc.service.artifact.atomic import write_file
from relaxc.service.artifact.key import Key
from relaxc.service.lowering.kernel_cache import is_object, packed, path_of, read_object, records
from relaxc.service.request import canonical_json

__all__ = ["JOURNAL", "Journal", "Kernels", "Stats", "toolchain_of"]

_ENTRIES = ("version.apache-tvm", "version.apache-tvm-ffi", "source.lowering", "setting.", "platform.")
JOURNAL = "kernels.journal"
"""Its name in a job's folder."""

_STALE_S = 60.0
"""Age at which what is being written is somebody's who died."""


def toolchain_of(key: Key) -> str:
    """Return what of an artifact's key decides on the code of a kernel whose text and target are known.

    The builder adds the version of LLVM, which only TVM knows.
    """
    entries = {name: text for name, text in key.entries if name.startswith(_ENTRIES)}
    return canonical_json({**entries, "machine": os.uname().machine})


@dataclass(frozen=True, slots=True)
class Stats:
    """How many objects the cache has, and what they take."""

    count: int
    size_bytes: int
    max_bytes: int

    def to_dict(self) -> dict[str, int]:
        """Return them as JSON values."""
        return {"count": self.count, "size_bytes": self.size_bytes, "max_bytes": self.max_bytes}


@dataclass(slots=True)
class Journal:
    """Where one job's builder notes what it makes; `payload` is what `start_builder` takes."""

    payload: dict[str, Any]
    number: int


class Kernels:
    """The cache below `root`, kept under `max_bytes`; 0 is none, and nothing is read or written.

    Any number of processes of one user may use it. An object is there whole or not at all, and checked when it is read.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self._staging = root / "staging"

    @staticmethod
    def below(folder: Path, max_bytes: int) -> Kernels:
        """Return the cache of the store in `folder`."""
        return Kernels(folder / "kernels", max_bytes)

    @contextmanager
    def journal(self, workdir: Path, key: Key, processes: int) -> Iterator[Journal]:
        """Give the journal of a job that is to run in `workdir`; it has no name once the job's builder has it."""
        payload: dict[str, Any] = {"toolchain": toolchain_of(key), "processes": processes}
        if self.max_bytes == 0 or not self._prepare():
            yield Journal(payload, -1)
            return
        path = workdir / JOURNAL
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield Journal({**payload, "folder": str(self.root), "journal": JOURNAL}, number)
        finally:
            os.close(number)

    def _prepare(self) -> bool:
        """Makes the folders, which jobs of any user id of ours may read; False where something else has their name."""
        try:
            for path in (self.root, self._staging):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o755)
        except (FileExistsError, NotADirectoryError):
            return False
        return True

    def adopt(self, journal: Journal) -> int:
        """Put away what the builder of a job that has ended noted, and return how many objects are new.

        Only of a journal that the builder took, which then has no name. What the disk has no room for is left out.
        """
        if journal.number < 0 or os.fstat(journal.number).st_nlink:
            return 0
        new = 0
        for record in records(journal.number):
            path = path_of(self.root, record.key)
            with suppress(OSError):
                if record.content is None:
                    os.utime(path)
                elif is_object(record.content) and read_object(self.root, record.key) is None:
                    self._write(path, packed(record.key, record.content))
                    new += 1
        if new:
            self.gc()
        return new

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o755)
        write_file(path, data, self._staging, mode=0o644)

    def stats(self) -> Stats:
        """Return what the cache has."""
        files = list(self._files())
        return Stats(len(files), sum(size for _, size, _ in files), self.max_bytes)

    def gc(self, max_bytes: int | None = None) -> int:
        """Remove the least recently used objects until they fit, and what writers that died left; return the bytes."""
        limit = self.max_bytes if max_bytes is None else max_bytes
        files = sorted(self._files())
        total, freed = sum(size for _, size, _ in files), 0
        for _, size, path in files:
            if total - freed <= limit:
                break
            path.unlink(missing_ok=True)
            freed += size
        for path in self._staging.glob("*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    path.unlink()
        return freed

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Each object's last use, its size, and where it is."""
        for path in self.root.glob("??/*.o"):
            with suppress(FileNotFoundError):
                facts = path.stat()
                yield facts.st_mtime, facts.st_size, path
