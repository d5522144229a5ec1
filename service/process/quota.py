"""How much of the disk a job takes, counted by its guard: there is no other way that works for every user and disk."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from service.process.limits import Limits
from service.process.tree import walk

__all__ = ["FULL", "OVER", "Quota", "free_bytes"]

OVER, FULL = "quota", "full"
"""Why a job is ended: it has more than it may, or it has much where the disk has little left."""

_PAUSE_S = 1.0
_SHARE_OF_TIME = 0.05
_MOST_FILES = 200_000
_MUCH = 8
"""A job has much where it has this part of what should be free."""

_BLOCK = 512  # stat(2)


class Quota:
    """The disk of one job, as this process sees it, whose descendants are the job's."""

    def __init__(self, workdir: Path, limits: Limits) -> None:
        self._workdir, self._limits = workdir, limits
        self._pause_s = _PAUSE_S

    @property
    def pause_s(self) -> float:
        """How long to wait before the next count, which is to take little of the time."""
        return self._pause_s

    def broken(self) -> str:
        """Return OVER, FULL or nothing."""
        before = time.monotonic()
        used = self.used_bytes()
        self._pause_s = max(_PAUSE_S, (time.monotonic() - before) / _SHARE_OF_TIME)
        if used is None or used > self._limits.disk_bytes:
            return OVER
        floor = self._limits.disk_floor_bytes
        return FULL if used * _MUCH > floor and free_bytes(self._workdir) < floor else ""

    def used_bytes(self) -> int | None:
        """Return what its files take, those included that it has removed and still has open.

        None where they cannot be counted: too many, too deep, or in a folder that the job has closed.
        """
        found: dict[int, int] = {}
        try:
            device = self._workdir.stat().st_dev
            for item in walk(self._workdir):
                found[item.facts.st_ino] = item.facts.st_blocks * _BLOCK
                if len(found) > _MOST_FILES:
                    return None
        except OSError:
            return None
        found |= {facts.st_ino: facts.st_blocks * _BLOCK for facts in _removed(device)}
        return sum(found.values())


def free_bytes(path: Path) -> int:
    """Return how much of the disk that `path` is on is left to who is not root."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


def _removed(device: int) -> Iterator[os.stat_result]:
    """Files without a name that descendants of this process have open or, where we may ask that, mapped."""
    for process in psutil.Process().children(recursive=True):
        for path in _opened(process.pid):
            with contextlib.suppress(OSError):
                facts = path.stat()
                if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0 and facts.st_dev == device:
                    yield facts


def _opened(pid: int) -> Iterable[Path]:
    """Links to what a process has open; those to what it has mapped are root's to follow."""
    own = Path(f"/proc/{pid}")
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found += (own / "fd").iterdir()
    with contextlib.suppress(OSError):
        for line in (own / "maps").read_text(errors="replace").splitlines():
            if line.endswith("(deleted)"):
                found.append(own / "map_files" / line.partition(" ")[0])
    return found
