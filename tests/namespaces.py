"""The processes of a job, as they are known outside of its PID namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import psutil

__all__ = ["families", "outside"]


def outside(pids: Sequence[int]) -> list[int]:
    """Return our ids of the processes that call themselves `pids`, the job's first, where one job runs."""
    (found,) = families(pids)
    return found


def families(pids: Sequence[int]) -> list[list[int]]:
    """Return our ids of the processes that call themselves `pids`, for each job that has such, in that order.

    They are descendants of ours and run now.
    """
    return [family for job in psutil.Process().children(recursive=True) if (family := _family(job, pids))]


def _family(job: psutil.Process, pids: Sequence[int]) -> list[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        if _own_id(job.pid) == pids[0]:
            known = {_own_id(each.pid): each.pid for each in (job, *job.children(recursive=True))}
            if all(pid in known for pid in pids):
                return [known[pid] for pid in pids]
    return []


def _own_id(pid: int) -> int:
    """A process's id in the innermost namespace that it is in (proc(5), NSpid)."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0
