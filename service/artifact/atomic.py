"""File operations that another process sees whole or not at all, and that a `kill -9` cannot leave half done."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["hold_folder", "remove_folder", "staging_folder", "sweep_staging", "sync", "vacate", "write_file"]


def sync(path: Path) -> None:
    """Return when the file's or folder's contents are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, data: bytes, staging: Path, *, mode: int | None = None) -> None:
    """Replace `path` by a file with these contents; `staging` is a folder of the same file system.

    `mode` is the file's, what the process gives to new ones if None.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = staging / uuid.uuid4().hex
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def hold_folder(path: Path, *, exclusive: bool) -> int | None:
    """Return a descriptor of the folder, locked until it is closed; None when it is gone, or held by somebody else.

    flock(2) locks end with the process, so nobody has to clean up after one that was killed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None


@contextmanager
def staging_folder(staging: Path) -> Iterator[Path]:
    """Give a new folder in `staging`, held while in use and removed at the end unless it was renamed away."""
    folder = staging / uuid.uuid4().hex
    folder.mkdir(parents=True)
    handle = hold_folder(folder, exclusive=True)
    try:
        yield folder
    finally:
        if handle is not None:
            os.close(handle)
        shutil.rmtree(folder, ignore_errors=True)


def remove_folder(folder: Path, staging: Path, *, only_if: Callable[[], bool] = lambda: True) -> bool:
    """Remove the folder unless somebody holds it, or `only_if`, asked while nobody else may touch it, says no.

    It disappears at once, its contents a little later.
    """
    handle = hold_folder(folder, exclusive=True)
    if handle is None:
        return False
    try:
        if not only_if():
            return False
        vacate(folder, staging)
    finally:
        os.close(handle)
    return True


def vacate(folder: Path, staging: Path) -> None:
    """Remove the folder, if there is one, whoever holds it: at once from its place, its contents a little later."""
    gone = staging / uuid.uuid4().hex
    staging.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def sweep_staging(staging: Path, older_than: float) -> None:
    """Remove what dead processes left in `staging`: last changed before the time `older_than`, and held by nobody."""
    for path in list(staging.iterdir()) if staging.is_dir() else []:
        try:
            if path.stat().st_mtime >= older_than:
                continue
            if not path.is_dir():
                path.unlink(missing_ok=True)
                continue
        except FileNotFoundError:
            continue
        handle = hold_folder(path, exclusive=True)
        if handle is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)
