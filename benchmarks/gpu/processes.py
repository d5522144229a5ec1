"""Processes that are stopped while another one is timed, with all that they started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

__all__ = ["descendants", "signal_all"]


def descendants(pid: int) -> list[int]:
    """Return the process and everything that it and its children started, whatever sessions they are in."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue  # it ended
            parent = int(status.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, pending = [], [pid]
    while pending:
        found.append(pending.pop())
        pending += children.get(found[-1], [])
    return found


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process with its descendants; those that are gone are left out."""
    for pid in [each for root in pids for each in descendants(root)]:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
