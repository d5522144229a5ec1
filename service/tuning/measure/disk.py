"""The disk that trials are built on: when it is full that is nobody's trial, and the run stops instead."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relaxc.service.errors import StoreUnwritable

__all__ = ["check_room", "writing"]

_ROOM_BYTES = 16 << 20
"""More than the object files and the library of one candidate, which the linker has at the same time."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StoreUnwritable that names `folder`."""
    try:
        yield
    except OSError as error:
        raise StoreUnwritable(
            f"cannot build candidates in {folder}: {error.strerror or error}",
            remedy=f"Free space on the disk of {folder} and go on with --resume, or name another folder.",
            path=str(folder),
        ) from error


def check_room(folder: Path) -> None:
    """Raise StoreUnwritable where `folder` takes no candidate any more: its disk or a quota is full."""
    with writing(folder), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
