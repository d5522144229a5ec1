"""Folders for uploads and jobs, below one that belongs to this process and that the next one clears if we cannot."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
import threading
import time
from pathlib import Path
from typing import BinaryIO

from relaxc.service.process.tree import remove_tree

__all__ = ["Workspace"]

_LOCK = "lock"
_UNBORN, _GONE = ".new-", ".gone-"
_UNBORN_LIMIT_S = 3600.0


class Workspace:
    """Gives out private folders below `root`, on the store's file system so that a finished file is moved, not copied.

    What a killed process left is removed when the next workspace opens, and by `sweep`: its lock is no longer held. The
    lock is the kernel's, not a process id, so that two containers may share one root. A folder gets another name before
    it is removed, since without its lock nobody would know that it is left.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        self._making = threading.Lock()
        self._make(root)

    def _make(self, root: Path) -> None:
        unborn = Path(tempfile.mkdtemp(prefix=_UNBORN, dir=root))
        self._lock: BinaryIO = (unborn / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Only a locked folder has a name that a sweep looks at.
        self.path = unborn.rename(root / unborn.name.removeprefix(_UNBORN))

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def folder(self, purpose: str) -> Path:
        """Make an empty folder, which others cannot read; whoever asked for it removes it with `remove`."""
        try:
            return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=self.path))
        except FileNotFoundError:  # somebody has removed ours, or the folder of all
            with self._making:
                if not self.path.is_dir():
                    self._lock.close()
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._make(self.path.parent)
            return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=self.path))

    def remove(self, folder: Path) -> None:
        """Remove a folder and what is in it, also what nobody but root could list; what may not be removed goes with
        the next sweep."""
        _removed(folder)

    def close(self) -> None:
        """Remove every folder given out. May be called twice."""
        with contextlib.suppress(FileNotFoundError):
            self.remove(_put_away(self.path))
        self._lock.close()

    def sweep(self) -> None:
        """Remove what killed processes left."""
        _sweep(self.path.parent)


def _put_away(folder: Path) -> Path:
    return folder.rename(folder.with_name(_GONE + folder.name))


def _sweep(root: Path) -> None:
    for folder in root.iterdir():
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it
            if folder.name.startswith(_GONE):
                _removed(folder)
            elif folder.name.startswith(_UNBORN):
                if time.time() - folder.stat().st_mtime > _UNBORN_LIMIT_S:
                    _removed(folder)
            elif _is_abandoned(folder):
                _removed(_put_away(folder))


def _removed(folder: Path) -> None:
    with contextlib.suppress(OSError):
        remove_tree(folder)


def _is_abandoned(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or not one of ours
        return False
    return True
