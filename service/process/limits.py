"""What one job may use, and how the kernel is told so."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from relaxc.service.config import Settings, settings
from relaxc.service.process.sandbox.kernel import prctl

__all__ = [
    "Limits",
    "become_subreaper",
    "die_with_parent",
    "free_bytes",
    "free_files",
    "is_full",
    "kernel_oom_kills",
    "kill_with_parent",
    "most_processes",
    "name_process",
    "tuning_time_s",
]

# <linux/prctl.h>
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_VMSTAT = Path("/proc/vmstat")

# Processes and threads: each core has one in each of a few libraries (TVM, OpenMP, ONNX Runtime, torch), and g++ some.
_PROCESSES, _PROCESSES_A_CORE = 256, 16

_NEXT_TO_NOTHING = 1 << 20

_TUNE_GRACE_S = 1800.0
"""What a tuning may take beside its time: the import, the last batch, the comparisons at the end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Wall-clock seconds, memory, file size, and the disk that its files take together, of one job.

    Memory is RLIMIT_DATA of each process, not RLIMIT_AS: it counts private writable pages, and neither memory-mapped
    weights nor the address space that LLVM, glibc's arenas and the CUDA driver reserve without using. Where the job
    has a control group, that holds all of its processes together to the same number, shared memory included.
    Where less than `disk_floor_bytes` of the disk are left, a job that has taken much of it is ended.
    """

    timeout_s: float
    memory_bytes: int
    file_bytes: int
    disk_bytes: int = 32 << 30
    disk_floor_bytes: int = 0

    @staticmethod
    def of_settings(values: Settings | None = None) -> Limits:
        """Return the limits of one compile that the settings give."""
        values = values or settings()
        memory_bytes, file_bytes = values.compile_memory_bytes, values.compile_file_bytes
        return Limits(values.compile_timeout_s, memory_bytes, file_bytes, values.compile_disk_bytes)

    def for_tuning(self, time_s: float | None) -> Limits:
        """Return these with the time of a tuning: its own and some more, RELAXC_TUNE_TIMEOUT_S where it has none."""
        return replace(self, timeout_s=settings().tune_timeout_s if time_s is None else time_s + _TUNE_GRACE_S)

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as JSON values, for `Limits(**data)`."""
        return asdict(self)

    def apply(self) -> None:
        """Put this process, and what it starts, under the limits; the guard enforces the time. Not to be undone."""
        for kind, limit in (
            (resource.RLIMIT_DATA, self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_CORE, 0),
        ):
            _, hard = resource.getrlimit(kind)
            bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (bound, bound))
        # Where the machine itself runs out of memory, a compile is what the kernel should take, not the server.
        with contextlib.suppress(PermissionError):  # in a job's sandbox, before which it has been written
            Path("/proc/self/oom_score_adj").write_text("1000")


def most_processes() -> int:
    """Return how many processes and threads a job may have at a time."""
    return _PROCESSES + _PROCESSES_A_CORE * (os.cpu_count() or 1)


def free_bytes(path: Path) -> int:
    """Return how much of the disk that `path` is on is left to who is not root."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


def free_files(path: Path) -> int:
    """Return how many more files the disk that `path` is on has room for, for who is not root."""
    facts = os.statvfs(path)
    return facts.f_favail if facts.f_files else sys.maxsize  # a file system without a table of them says 0


def is_full(path: Path) -> bool:
    """Return whether the disk that `path` is on has too little left for a file of any tool."""
    return free_bytes(path) < _NEXT_TO_NOTHING


def tuning_time_s(time_s: float | None) -> float:
    """Return how long a tuning may search: its own time, or so long that it ends within RELAXC_TUNE_TIMEOUT_S."""
    limit_s = settings().tune_timeout_s
    return max(limit_s - _TUNE_GRACE_S, limit_s / 2) if time_s is None else time_s


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the one that forked it, `parent_pid`, ends in whatever way."""
    kill_with_parent()
    if os.getppid() != parent_pid:  # it ended before the prctl
        os._exit(1)


def kill_with_parent() -> None:
    """Do as `die_with_parent` for a parent that may have ended already, which the caller has to find out."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process, so that none escapes it."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Set the name, of at most 15 bytes, that `ps` and `top` show for this process."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    prctl(_PR_SET_NAME, ctypes.addressof(buffer))


def kernel_oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since it started; 0 where it does not say."""
    try:
        lines = _VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
