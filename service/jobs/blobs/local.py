"""Bytes by name below one folder: whole or not there at all, also after a `kill -9`."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from pathlib import Path

from relaxc.service.artifact.atomic import sweep_staging, sync
from relaxc.service.errors import StoreUnwritable

__all__ = ["KINDS", "LocalBlobs", "is_blob_name"]

KINDS = frozenset(("artifacts", "jobs", "keys", "models", "records"))
"""What names begin with: `relaxc.service.jobs.queue.retention` says when each is deleted."""

_NAME = re.compile(r"[a-z]+(/(?!\.\.?(/|$))[^/\\\x00-\x1f\x7f]{1,255}){1,3}")
_QUARANTINED_S = 30 * 86400.0
"""How long what was damaged is kept for people to look at."""

_TRIES = 100  # to make a folder that others remove; each lost try needs one of them between two system calls


def is_blob_name(name: str) -> bool:
    """Return whether this is a name that a blob may have: one of KINDS, then plain names; no way out of the folder."""
    return _NAME.fullmatch(name) is not None and name.partition("/")[0] in KINDS


class LocalBlobs:
    """Files below `root`; any number of processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._staging = root / ".staging"
        self._staging.mkdir(parents=True, exist_ok=True)
        self._quarantine = root / ".quarantine"

    def path(self, name: str) -> Path:
        """Return where the blob is, if it is. Raise ValueError for what is no blob's name."""
        if not is_blob_name(name):
            raise ValueError(f"{name!r} is no name of a blob")
        return self.root / name

    def staged(self) -> Path:
        """Return a path of the same file system to write to before `put`; what is left there is removed."""
        return self._staging / uuid.uuid4().hex

    def put(self, name: str, file: Path) -> Path:
        """Move `file`, of the same file system, to its place, on the disk when this returns.

        Raise StoreUnwritable.
        """
        path = self.path(name)
        try:
            sync(file)
            _move(file, path)
            with contextlib.suppress(FileNotFoundError):  # somebody has removed it again, and its folder
                sync(path.parent)
        except OSError as error:
            raise StoreUnwritable(f"models and logs cannot be kept: {error.strerror or error}") from error
        return path

    def remove(self, name: str) -> None:
        """Remove it, and its folder once that is empty; nothing where it is not there."""
        path = self.path(name)
        path.unlink(missing_ok=True)
        if path.parent != self.root:
            try:
                path.parent.rmdir()
            except OSError:  # others are in it, or it has gone
                return

    def quarantine(self, name: str) -> None:
        """Put aside a blob that is damaged, for 30 days: it is not there any more."""
        self._quarantine.mkdir(exist_ok=True)
        aside = self._quarantine / f"{uuid.uuid4().hex}-{Path(name).name}"
        with contextlib.suppress(FileNotFoundError):
            self.path(name).replace(aside)
            os.utime(aside)
        self.remove(name)

    def sweep(self, older_than_s: float, now: float) -> None:
        """Remove what dead processes left half written, and have not touched for that long, and what was put aside."""
        sweep_staging(self._staging, now - older_than_s)
        sweep_staging(self._quarantine, now - _QUARANTINED_S)


def _move(file: Path, path: Path) -> None:
    """Move it, into a folder that `remove` may take away while it is still empty, so make that again."""
    for left in reversed(range(_TRIES)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file.replace(path)
            return
        except (FileNotFoundError, FileExistsError):
            if not left or not file.exists():
                raise
