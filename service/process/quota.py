"""What a job takes of disk, memory and processes, counted by its guard: a way that works for every user and machine."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from relaxc.service.process.limits import Limits, free_bytes, most_processes
from relaxc.service.process.tree import walk

__all__ = ["CROWD", "FULL", "HEAVY", "OVER", "Quota", "memory_bytes"]

OVER, FULL, HEAVY, CROWD = "quota", "full", "memory", "processes"
"""Why a job is ended: it has more of the disk than it may, or much where little is left; too much memory in all of its
processes; too many of them."""

_PAUSE_S = 1.0
_SHARE_OF_TIME = 0.05
_MOST_FILES = 200_000
_MUCH = 8
"""A job has much where it has this part of what should be free."""

_BLOCK = 512  # stat(2)


class Quota:
    """What one job takes, as this process sees it, whose descendants are the job's.

    A job that is `grouped` has its memory and processes counted by the kernel.
    """

    def __init__(self, workdir: Path, limits: Limits, *, grouped: bool) -> None:
        self._workdir, self._limits, self._grouped = workdir, limits, grouped
        self._pause_s = _PAUSE_S

    @property
    def pause_s(self) -> float:
        """How long to wait before the next count, which is to take little of the time."""
        return self._pause_s

    def broken(self) -> str:
        """Return one of the above, or nothing."""
        before = time.monotonic()
        try:
            return self._of_processes() or self._of_disk()
        finally:
            self._pause_s = max(_PAUSE_S, (time.monotonic() - before) / _SHARE_OF_TIME)

    def _of_processes(self) -> str:
        if self._grouped:
            return ""
        processes = [child.pid for child in psutil.Process().children(recursive=True)]
        if len(processes) > most_processes():
            return CROWD
        return HEAVY if sum(map(memory_bytes, processes)) > self._limits.memory_bytes else ""

    def _of_disk(self) -> str:
        used = self.used_bytes()
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


def memory_bytes(pid: int) -> int:
    """Return what a process has of memory that no file is behind; of what it shares with others its part."""
    with contextlib.suppress(OSError, ValueError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        rows = dict(line.split(":", 1) for line in text.splitlines()[1:])
        return sum(int(rows[name].split()[0]) << 10 for name in ("Pss_Anon", "Pss_Shmem") if name in rows)
    return 0


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
