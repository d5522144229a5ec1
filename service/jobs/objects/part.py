"""The file of an upload that is on its way: its size is the offset, and who sends has it locked."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from relaxc.service.errors import StoreUnwritable, UploadConflict

__all__ = ["Part", "UploadState", "unwritable"]


@dataclass(frozen=True, slots=True)
class UploadState:
    """How much of an upload has come, in bytes; `total` is what its sender announced."""

    sha256: str
    offset: int
    total: int

    @property
    def complete(self) -> bool:
        """Whether all bytes are there; that they are the right ones, `Uploads.finish` says."""
        return self.offset == self.total


class Part:
    """An upload held open by one sender: `write` in order, then `close`; what was written stays."""

    def __init__(self, path: Path, sha256: str, total: int) -> None:
        """Opens or makes the file. Raise UploadConflict when somebody else has it open, StoreUnwritable."""
        self.path = path
        self._sha256, self._total = sha256, total
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unwritable(error) from error
        if not _hold(self._handle, path):
            offset = os.fstat(self._handle).st_size
            self.close()
            raise UploadConflict("somebody else sends this upload now", offset=offset, total=total)

    @property
    def state(self) -> UploadState:
        """How far it is."""
        size = self.path.stat().st_size if self._handle is None else os.fstat(self._handle).st_size
        return UploadState(self._sha256, size, self._total)

    def write(self, data: bytes) -> None:
        """Append. Raise UploadConflict past the announced total, of which nothing is kept; StoreUnwritable."""
        assert self._handle is not None, "the part is closed"
        state = self.state
        if state.offset + len(data) > self._total:
            raise UploadConflict(f"more than the announced {self._total} bytes", offset=state.offset, total=self._total)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._handle, view) :]
        except OSError as error:
            raise unwritable(error) from error

    def close(self) -> None:
        """Let others go on with it. May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone leaves it to a fork that has not come to its exec yet
            os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _hold(handle: int, path: Path) -> bool:
    """Locks the file; False when another has, or when it is no longer the one at `path`."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def unwritable(error: OSError) -> StoreUnwritable:
    """Return what a sender is told where its bytes cannot be kept."""
    return StoreUnwritable(f"the upload cannot be kept: {error.strerror or error}")
