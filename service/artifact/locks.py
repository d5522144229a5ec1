"""The store's locks: files that one process or thread holds at a time, gone when nobody has needed them for an hour."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from relaxc.service.errors import Busy

__all__ = ["held", "sweep_locks"]

_IDLE_S = 3600.0
"""Age at which the file of a lock that nobody holds is removed: there would be one for each key for ever."""


@contextmanager
def held(path: Path, timeout_s: float = -1) -> Iterator[None]:
    """Hold this lock. Raise Busy after `timeout_s` seconds; a negative one waits for ever."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(path, timeout=timeout_s):
            yield
    except filelock.Timeout as error:
        raise Busy(f"another process has held {path.name} for over {timeout_s} s") from error


def sweep_locks(folder: Path) -> None:
    """Remove the locks that nobody holds or has needed for an hour.

    Who waits for a lock that is removed notices, and makes it anew (filelock sees to that).
    """
    for path in folder.glob("*.lock"):
        with suppress(FileNotFoundError, filelock.Timeout):
            if path.stat().st_mtime < time.time() - _IDLE_S:
                with filelock.FileLock(path, timeout=0):
                    path.unlink()
