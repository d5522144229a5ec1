"""Where exports lie: one folder for all processes of a test run, and each file is written once."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

from filelock import FileLock

__all__ = ["share_exports", "written_once"]

_SHARED = "ZOO_FOLDER"


@contextlib.contextmanager
def share_exports() -> Iterator[None]:
    """Has this process and those that it starts meanwhile share a folder, which ends with this."""
    folder = Path(tempfile.gettempdir()) / f"relaxc-zoo-{uuid4().hex}"  # made with the first export
    os.environ[_SHARED] = str(folder)
    try:
        yield
    finally:
        del os.environ[_SHARED]
        shutil.rmtree(folder, ignore_errors=True)


def written_once(name: str, write: Callable[[Path], object]) -> Path:
    """The file `name`, by `write(path)` where no process has written it yet."""
    path = _folder() / name
    with FileLock(f"{path}.lock"):
        if not path.exists():
            unfinished = path.with_name(f"unfinished-{name}")
            write(unfinished)
            unfinished.rename(path)
    return path


def _folder() -> Path:
    if _SHARED not in os.environ:
        return Path(_own().name)
    folder = Path(os.environ[_SHARED])
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@functools.lru_cache(maxsize=1)
def _own() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="relaxc-zoo-")
