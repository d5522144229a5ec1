"""The first process of a job: behind an init, in a PID namespace of its own, where that can be had.

guard → init → job → g++, nvcc, …

When the init ends, in whatever way, the kernel kills every process of the namespace before anybody hears of it. It
does nothing but reap, and tell the guard how the job ended: whoever runs in the job can neither see nor signal more.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from relaxc.service.process.limits import die_with_parent, kill_with_parent, name_process
from relaxc.service.process.sandbox.confinement import Place
from relaxc.service.process.sandbox.namespaces import leave_processes, own_proc

__all__ = ["Exit", "First", "fork_first", "shared_processes"]

_MOST = 1 << 12


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: its wait status, and the most memory that it, or a process that it waited for, had."""

    status: int
    max_rss_bytes: int


@dataclass(frozen=True, slots=True)
class First:
    """A job's first process, `pid` by our ids; `root` is whom to wait for and to kill, the init where there is one."""

    pid: int
    root: int
    _key: int
    _told: int

    def start(self) -> None:
        """Let it begin."""
        with contextlib.suppress(BrokenPipeError):  # it is dead already
            os.write(self._key, b"g")
        os.close(self._key)

    def wait(self) -> Exit:
        """Return how it ended, once `root` has, whose zombie is gone then."""
        _, status, usage = os.wait4(self.root, 0)
        told = os.read(self._told, _MOST)
        os.close(self._told)
        return Exit(**json.loads(told)) if told else Exit(status, usage.ru_maxrss * 1024)


def fork_first(run: Callable[[Place], NoReturn], shared: str) -> First:
    """Fork a process that calls `run`, which never returns, once `First.start` has been called.

    Without a reason in `shared` it gets a PID namespace of its own; this process's later forks would be in it too.
    """
    shared = shared or _leave()
    (told, teller), (gate, key), us = os.pipe(), os.pipe(), os.getpid()
    root = os.fork()
    if root == 0:
        with _ends_here():
            os.close(told)
            os.close(key)
            pid = _behind_init(teller) if not shared else _below(us)
            os.write(teller, b"%d\n" % pid)
            os.close(teller)
            if os.read(gate, 1):  # nothing comes where the guard has ended
                os.close(gate)
                run(Place(pid, shared))
    os.close(teller)
    os.close(gate)
    return First(_number(told) or root, root, key, told)


@contextlib.contextmanager
def _ends_here() -> Iterator[None]:
    """Whatever a fork does, it never runs its parent's code."""
    try:
        yield
    except Exception:  # noqa: BLE001  # the end of a forked process: the trace goes to the log
        traceback.print_exc()
    finally:
        os._exit(70)


def _below(parent: int) -> int:
    die_with_parent(parent)
    return os.getpid()


def _number(told: int) -> int:
    """The line that the pipe begins with; what comes after it stays there. 0 where it ends before."""
    digits = b""
    while (digit := os.read(told, 1)).isdigit():
        digits += digit
    return int(digits or 0)


def _leave() -> str:
    try:
        leave_processes()
    except OSError as error:
        return str(error)
    return ""


def _behind_init(teller: int) -> int:
    """Fork; return in the fork, with its id outside of the namespace. In this process, the init, never return."""
    kill_with_parent()
    outside = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
    own_proc()
    job = os.fork()
    if job == 0:
        die_with_parent(os.getppid())
        pid = int(os.readlink("self", dir_fd=outside))
        os.close(outside)
        return pid
    name_process("relaxc-init")
    while True:
        ended, status, usage = os.wait4(-1, 0)
        if ended == job:
            os.write(teller, json.dumps(asdict(Exit(status, usage.ru_maxrss * 1024))).encode())
            os._exit(0)


def shared_processes() -> str:
    """Return why a job cannot have a PID namespace here, as a fork that takes one finds out; empty where it can."""
    return _from_fork(lambda: _leave() or _from_fork(_why_no_proc))


def _why_no_proc() -> str:
    try:
        own_proc()
        Path("/proc/self/stat").read_text()
    except OSError as error:
        return str(error)
    return ""


def _from_fork(find: Callable[[], str]) -> str:
    """Return what `find` returns in a fork."""
    told, teller = os.pipe()
    child = os.fork()
    if child == 0:
        with _ends_here():
            os.write(teller, find().encode()[:_MOST])
            os._exit(0)
    os.close(teller)
    why = os.read(told, _MOST).decode()
    os.close(told)
    _, status = os.waitpid(child, 0)
    return why or ("" if status == 0 else "the process that tried it died")
