"""The zygote's work: a fork for each job, and an end for what a guard that was killed leaves behind."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
import traceback

import psutil

from service.process.guard import stand_guard
from service.process.limits import become_subreaper

__all__ = ["serve_forks"]

_LAST_GUARDS_S = 4.0
"""How long guards may take to end their jobs when the server has gone; less than a server waits for its zygote."""

_STRAYS_S = 5.0
_PAUSE_S = 0.002


def serve_forks(control: socket.socket) -> None:
    """Forks a guard for each channel that comes in, until the other end closes and the guards have ended.

    The kernel kills a job whose guard was killed; what the job had started comes to this process, and is killed here.
    """
    become_subreaper()
    guards: dict[int, int] = {}  # by the pidfd
    poll = select.poll()
    poll.register(control, select.POLLIN)
    deadline: float | None = None
    while deadline is None or (guards and time.monotonic() < deadline):
        for ready, _ in poll.poll(None if deadline is None else 1000 * max(0.0, deadline - time.monotonic())):
            if ready in guards:
                poll.unregister(ready)
                _bury(guards, ready)
            elif (channels := _take(control)) is not None:
                for channel in channels:
                    pidfd, pid = _fork_guard(control, channel)
                    guards[pidfd] = pid
                    poll.register(pidfd, select.POLLIN)
            else:
                poll.unregister(control)
                deadline = time.monotonic() + _LAST_GUARDS_S


def _take(control: socket.socket) -> list[int] | None:
    """The channels that came; None when the other end has closed."""
    message, channels, _, _ = socket.recv_fds(control, 1, 1)
    return channels if message else None


def _fork_guard(control: socket.socket, channel: int) -> tuple[int, int]:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            control.close()
            with socket.socket(fileno=channel) as connection:
                stand_guard(connection)
            code = 0
        except Exception:  # noqa: BLE001  # the end of a forked process: the trace goes to the zygote's log
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(channel)
    return os.pidfd_open(pid), pid


def _bury(guards: dict[int, int], pidfd: int) -> None:
    """Reaps a guard, and ends its strays unless it has seen to that itself."""
    _, status = os.waitpid(guards.pop(pidfd), 0)
    os.close(pidfd)
    if status != 0:
        _end_strays(set(guards.values()))


def _end_strays(guards: set[int]) -> None:
    """Kills every child that is no guard, until there is none: those of the killed become ours in turn.

    They are not reaped before, so that no process id that is signalled can be somebody else's.
    """
    me, deadline = psutil.Process(), time.monotonic() + _STRAYS_S
    while strays := [child for child in me.children() if child.pid not in guards]:
        for stray in strays:
            with contextlib.suppress(psutil.NoSuchProcess):
                stray.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray.pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return
        time.sleep(_PAUSE_S)
