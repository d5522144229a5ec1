"""Who else ran on this process's cores while something was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Others"]

_IDLE = (3, 4)
"""Columns of /proc/stat (`man 5 proc`): idle, and waiting for a disk. Guests are counted in the first two as well."""
_COUNTED = 8


class Others:
    """What the allowed cores do beside some processes, from now on."""

    def __init__(self, pids: Iterable[int], root: Path = Path("/proc")) -> None:
        self._pids, self._root = list(pids), root
        self._cores = frozenset(os.sched_getaffinity(0))
        self._start, self._busy, self._own = time.monotonic(), self._seconds(), self._own_seconds()

    def cores(self) -> float:
        """Return how many cores others, the hypervisor too, took on average; 0 where nothing tells."""
        taken = self._seconds() - self._busy - (self._own_seconds() - self._own)
        return round(max(0.0, taken / max(time.monotonic() - self._start, 1e-9)), 3)

    def _seconds(self) -> float:
        """The seconds that the cores were not idle."""
        ticks = 0
        for line in self._text("stat").splitlines():
            name, *numbers = line.split()
            if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in self._cores:
                ticks += sum(int(n) for place, n in enumerate(numbers[:_COUNTED]) if place not in _IDLE)
        return ticks / os.sysconf("SC_CLK_TCK")

    def _own_seconds(self) -> float:
        """The seconds that the processes ran."""
        ticks = 0
        for pid in self._pids:
            fields = self._text(f"{pid}/stat").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _text(self, name: str) -> str:
        try:
            return (self._root / name).read_text()
        except OSError:
            return ""
