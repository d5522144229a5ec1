"""The folder of a job, walked and removed by descriptors: whoever made it may have made it too deep for any path."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MOST_DEPTH", "Item", "remove_tree", "walk"]

MOST_DEPTH = 64
"""Folders within each other; the deepest that our own jobs make are a handful."""

_MOST_ROUNDS = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Item:
    """A file or folder as it was found: `name` in the folder that `parent` is open on while it is looked at."""

    parent: int
    name: str
    facts: os.stat_result


def walk(root: Path) -> Iterator[Item]:
    """Yield everything below `root`, a folder before what is in it; what goes meanwhile is left out.

    Raise OSError for what cannot be listed, and below MOST_DEPTH folders.
    """
    top = os.open(root, _FOLDER)
    try:
        yield from _below(top, 1)
    finally:
        os.close(top)


def _below(parent: int, depth: int) -> Iterator[Item]:
    if depth > MOST_DEPTH:
        raise OSError(errno.ELOOP, f"over {MOST_DEPTH} folders within each other")
    with os.scandir(parent) as entries:
        for entry in entries:
            try:
                item = Item(parent, entry.name, entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            yield item
            if not stat.S_ISDIR(item.facts.st_mode):
                continue
            try:
                folder = os.open(entry.name, _FOLDER, dir_fd=parent)
            except (FileNotFoundError, NotADirectoryError):
                continue
            try:
                yield from _below(folder, depth + 1)
            finally:
                os.close(folder)


def remove_tree(root: Path) -> None:
    """Remove a folder and all that is in it, also what its owner has closed; nothing where there is none.

    Each folder is moved up before it is emptied, so that depth does not matter. Raise OSError for what may not be
    removed, and where somebody still writes.
    """
    with contextlib.suppress(FileNotFoundError):
        _open_up(root)
        top = os.open(root, _FOLDER)
        try:
            for _ in range(_MOST_ROUNDS):
                if not (names := _names(top)):
                    break
                for name in names:
                    _remove(top, name)
        finally:
            os.close(top)
        root.rmdir()


def _remove(top: int, name: str) -> None:
    """Remove a file, or a folder whose own folders go to `top`."""
    if _unlinked(top, name):
        return
    with _unlocked(top, name) as folder:
        for child in _names(folder):
            if not _unlinked(folder, child):
                with _unlocked(folder, child):  # a folder that may not be written cannot be moved
                    os.rename(child, uuid.uuid4().hex, src_dir_fd=folder, dst_dir_fd=top)
    os.rmdir(name, dir_fd=top)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _unlinked(parent: int, name: str) -> bool:
    """Whether it was no folder, and is gone now. Raise OSError for what may not be removed."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return False
        raise
    return True


@contextlib.contextmanager
def _unlocked(parent: int, name: str) -> Iterator[int]:
    """A descriptor of the folder, of which we may do everything now."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        _open_up(Path(f"/proc/self/fd/{handle}"))
        folder = os.open(name, _FOLDER, dir_fd=parent)
    finally:
        os.close(handle)
    try:
        yield folder
    finally:
        os.close(folder)


def _open_up(folder: Path) -> None:
    """Let its owner do everything with it; a folder of another stays as it is."""
    with contextlib.suppress(PermissionError):
        if stat.S_IMODE(folder.stat().st_mode) & stat.S_IRWXU != stat.S_IRWXU:
            folder.chmod(0o700)
