"""The control group of one job: one bound on all of its processes together, and an end for all of them at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["JOB", "JobGroup", "end_left", "held"]

JOB = "relaxc-job-"
"""How the names of such groups begin."""

_WEIGHT = 50
"""Of a job's processor time; the server's own group has the kernel's 100."""

_TRIES = 5
_REMOVAL_S = 5.0
_PAUSE_S = 0.005


class JobGroup:
    """A group below `base` as long as this process holds it; what is bounded is what `base` has controllers for."""

    def __init__(self, base: Path, *, memory_bytes: int, processes: int) -> None:
        """Make it, without processes. Raise OSError."""
        self.folder, self._lock = _made(base)
        limits = {
            "memory.max": memory_bytes,
            "memory.swap.max": 0,
            "memory.oom.group": 1,
            "pids.max": processes,
            "cpu.weight": _WEIGHT,
        }
        try:
            for name, value in limits.items():
                with contextlib.suppress(FileNotFoundError):  # a controller, or swap, that is not there
                    _write(self.folder / name, value)
        except OSError:
            self.close()
            raise

    def take(self, *pids: int) -> None:
        """Have these processes in it, and all that they start from now on. Raise OSError."""
        for pid in dict.fromkeys(pids):
            _write(self.folder / "cgroup.procs", pid)

    def kill(self) -> None:
        """End every process in it."""
        _kill(self.folder)

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel has taken for want of memory."""
        return _oom_kills(self.folder)

    def close(self) -> None:
        """End what is in it, and remove it; where that takes too long, the next sweep does it."""
        end_left(self.folder)
        os.close(self._lock)


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Give whether nobody else holds this group; if so, nobody does while the block runs."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _locked(handle)
    finally:
        os.close(handle)


def end_left(folder: Path) -> None:
    """Kill what is in the group, and remove it, if that can be done in some seconds."""
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        _kill(folder)
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return
        time.sleep(_PAUSE_S)


def _made(base: Path) -> tuple[Path, int]:
    """A new group, and the descriptor that holds it: the lock goes with the process, so that a sweep knows the dead."""
    for _ in range(_TRIES):
        folder = base / f"{JOB}{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # a sweep was faster
            continue
        if _locked(handle) and folder.is_dir():
            return folder, handle
        os.close(handle)
    raise OSError(errno.EAGAIN, "somebody removes each new control group")


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if (folder / "cgroup.kill").exists():  # Linux 5.14
            _write(folder / "cgroup.kill", 1)
            return
        for pid in map(int, (folder / "cgroup.procs").read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _oom_kills(folder: Path) -> int:
    with contextlib.suppress(OSError):
        for line in (folder / "memory.events").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _write(path: Path, value: int) -> None:
    """One write(2) to a file that is there: opening one of the kernel's with O_CREAT would be another error."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, str(value).encode())
    finally:
        os.close(handle)
