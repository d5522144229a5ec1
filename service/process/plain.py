"""Files that a job left or still writes, opened as what they are: a job may put a link or a pipe in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from relaxc.service.errors import CompileFailed

__all__ = ["MAX_READ_BYTES", "open_left", "open_plain", "plain_file"]

MAX_READ_BYTES = 64 << 20
"""What is read of such a file into memory."""

# Without waiting: for who opens the other end of a pipe, or for a lease that the job has taken (fcntl(2), F_SETLEASE).
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_plain(path: Path) -> BinaryIO | None:
    """Return the file for reading; None where there is none, or something else than a regular file with one name.

    The folders above it must be ours: only the last part of `path` may be the job's.
    """
    try:
        fd = os.open(path, _FLAGS)
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return None
    facts = os.fstat(fd)
    if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1:
        return os.fdopen(fd, "rb")
    os.close(fd)
    return None


def open_left(workdir: Path, name: Any) -> BinaryIO:
    """Return a file that a job left in its folder under this plain name: no path out of it.

    Raise CompileFailed where there is none.
    """
    path = workdir / str(name)
    file = open_plain(path) if path.parent == workdir else None
    if file is None:
        raise CompileFailed(f"the job left no regular file {name!r}")
    return file


def plain_file(workdir: Path, name: Any) -> Path:
    """Return the path of what `open_left` would open, once no process of the job runs that could change it."""
    open_left(workdir, name).close()
    return workdir / str(name)
