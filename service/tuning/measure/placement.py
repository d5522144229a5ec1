"""Which cores the timed kernels have to themselves, and which are left for building meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Placement", "place"]

_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """Cores for the runner and for the builders; where none are left to build on, the two take turns on all."""

    timed: frozenset[int]
    building: frozenset[int]
    overlap: bool


def place(
    threads: int, cores: frozenset[int] | None = None, siblings: Callable[[int], set[int]] | None = None
) -> Placement:
    """Return the cores for `threads` timed threads, of those that this process may use.

    A hardware thread that shares its core with a timed one builds nothing: it would slow it down.
    """
    cores = cores if cores is not None else frozenset(os.sched_getaffinity(0))
    same_core = siblings or _siblings
    timed: list[int] = []
    for core in sorted(cores, key=lambda core: (min(same_core(core) & cores) != core, core)):
        if len(timed) < threads:
            timed.append(core)
    taken = set(timed).union(*(same_core(core) for core in timed))
    left = frozenset(cores - taken)
    return Placement(frozenset(timed), left, overlap=True) if left else Placement(cores, cores, overlap=False)


def _siblings(core: int) -> set[int]:
    """The hardware threads of the core that this one is of, itself among them."""
    try:
        text = (_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return {core}
    found: set[int] = {core}
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
