"""The disks that a server writes to, and what of them stays free so that what was accepted can come to its end."""

from __future__ import annotations

from pathlib import Path

from relaxc.service.errors import StoreUnwritable
from relaxc.service.process.limits import free_bytes, free_files

__all__ = ["Disks"]

_FILES = 2000
"""What jobs that run may still make: logs, artifacts, the folders of their children."""


class Disks:
    """The disks of these folders, of each of which `reserve_bytes` are for the database and for the ends of jobs.

    Asked anew each time, which takes microseconds: nothing has to be started again once there is space.
    """

    def __init__(self, reserve_bytes: int, *folders: Path) -> None:
        self.reserve_bytes = reserve_bytes
        self._folders = folders

    def free_bytes(self) -> int:
        """Return how much is left of the disk that has the least."""
        return min(free_bytes(folder) for folder in self._folders)

    def short(self, more_bytes: int = 0) -> str:
        """Return why nothing of `more_bytes` may be taken in now, empty where it may."""
        free, files = self.free_bytes(), min(map(free_files, self._folders))
        if files < _FILES:
            return f"a disk has room for {files} more files, and {_FILES} are for what was accepted"
        if free - more_bytes >= self.reserve_bytes:
            return ""
        return f"a disk has {free} bytes left, and RELAXC_DISK_RESERVE_BYTES keeps {self.reserve_bytes} free"

    def admit(self, more_bytes: int = 0) -> None:
        """Raise StoreUnwritable where there is no place for so much more."""
        if why := self.short(more_bytes):
            remedy = "Try again later; who runs the server frees space, deletes models, or lowers the reserve."
            raise StoreUnwritable(f"nothing new is taken: {why}", remedy=remedy)
