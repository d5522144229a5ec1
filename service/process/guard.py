"""The process that stands over one job: forks it, waits for it, and leaves nothing of it alive.

server ⇄ zygote → guard (subreaper) → init of a PID namespace, where there is one → job → g++, nvcc, …

The guard is the parent of the job and the reaper of all its orphans, so that no process id that it signals can
have been given to somebody else. It ends the job when the time is up, when its files are too many, when the server
hangs up (a cancel, or the server's own death), and when the job's first process has ended and others of it still run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from relaxc.service.errors import RelaxcError, ServiceError
from relaxc.service.process.apart import First, fork_first
from relaxc.service.process.child import run_child
from relaxc.service.process.group import JobGroup
from relaxc.service.process.limits import Limits, become_subreaper, kernel_oom_kills, most_processes, name_process
from relaxc.service.process.quota import OVER, Quota
from relaxc.service.process.sandbox.confine import take_back
from relaxc.service.process.task import Lines, send

__all__ = ["Ending", "stand_guard"]

_REAP_LIMIT_S = 60.0
"""Hundreds of processes die slowly on a loaded machine."""

_REAP_PAUSE_S = 0.002


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job's first process ended: `cause` is `exit`, `timeout`, `hangup`, or one of `quota`'s; `signal` 0 is an
    exit by itself.

    `oom_kills` counts the processes that the kernel took for want of memory meanwhile, of the job where it has a
    control group, else on the whole machine; `survivors` those of the job that would not die.
    """

    cause: str
    exit_code: int
    signal: int
    max_rss_bytes: int
    oom_kills: int
    survivors: int


def stand_guard(channel: socket.socket, shared: str) -> None:
    """Read a task from `channel`, run it in a fork of this process, and answer `started`, then `ended`.

    `shared` says why the job gets no PID namespace of its own, and is empty where it gets one.
    """
    os.setsid()
    name_process("relaxc-guard")
    become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the zygote ignores it
    spec = next(iter(Lines(channel)), None)
    if spec is None:
        return
    oom_kills, limits = kernel_oom_kills(), Limits(**spec["limits"])
    first = fork_first(lambda place: run_child(channel, spec, place), shared)
    try:
        group = _group_of(spec, first, limits)
    except OSError as error:
        _refuse(channel, first, ServiceError(f"the job cannot be given a control group: {error}"))
        return
    with contextlib.suppress(OSError):  # the server may be gone; then the wait ends at once
        send(channel, {"event": "started", "pid": first.pid})
    first.start()  # after the first line, so that the server knows whom it hears
    quota = Quota(Path(spec["workdir"]), limits, grouped=group is not None)
    cause = _wait(channel, first.root, limits.timeout_s, quota)
    ending = _end(cause, first, oom_kills, group)
    if cause == "exit" and quota.broken() == OVER:
        ending = replace(ending, cause=OVER)
    if not ending.survivors:
        take_back(Path(spec["workdir"]))
    _tell_end(channel, ending)


def _group_of(spec: dict[str, Any], first: First, limits: Limits) -> JobGroup | None:
    """The job's own control group, with it inside, where the server has a place for such."""
    if spec.get("groups") is None:
        return None
    group = JobGroup(Path(spec["groups"]), memory_bytes=limits.memory_bytes, processes=most_processes())
    try:
        group.take(first.root, first.pid)
    except OSError:
        group.close()
        raise
    return group


def _refuse(channel: socket.socket, first: First, error: RelaxcError) -> None:
    """End a job that has not begun."""
    with contextlib.suppress(OSError):
        send(channel, {"event": "started", "pid": first.pid})
        send(channel, {"event": "error", "error": error.to_dict()})
    _tell_end(channel, _end("exit", first, kernel_oom_kills(), None))


def _tell_end(channel: socket.socket, ending: Ending) -> None:
    with contextlib.suppress(OSError):
        channel.sendall(b"\n")  # ends a line that the job was killed in
        send(channel, {"event": "ended", **asdict(ending)})


def _wait(channel: socket.socket, root: int, timeout_s: float, quota: Quota) -> str:
    pidfd = os.pidfd_open(root)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(channel, select.POLLRDHUP)
    deadline = time.monotonic() + timeout_s
    try:
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poll.poll(min(left, quota.pause_s) * 1000 + 1))
            if pidfd in ready:
                return "exit"
            if channel.fileno() in ready:
                return "hangup"
            if over := quota.broken():
                return over
    finally:
        os.close(pidfd)
    return "timeout"


def _end(cause: str, first: First, oom_kills_before: int, group: JobGroup | None) -> Ending:
    """Kills the job's group, its init or process group, then every orphan that comes to us, until there is none."""
    if group is not None:
        group.kill()
    os.killpg(first.root, signal.SIGKILL) if _is_leader(first.root) else os.kill(first.root, signal.SIGKILL)
    ended = first.wait()
    status, survivors = ended.status, _reap_all()
    oom_kills = kernel_oom_kills() - oom_kills_before
    if group is not None:
        oom_kills = group.oom_kills()
        group.close()
    return Ending(
        cause=cause,
        exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        max_rss_bytes=ended.max_rss_bytes,
        oom_kills=oom_kills,
        survivors=survivors,
    )


def _is_leader(root: int) -> bool:
    """Whether a job came as far as its own process group; it is a child of ours and not yet reaped."""
    return os.getpgid(root) == root


def _reap_all() -> int:
    me = psutil.Process()
    deadline = time.monotonic() + _REAP_LIMIT_S
    while time.monotonic() < deadline:
        for process in me.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return 0
        time.sleep(_REAP_PAUSE_S)
    return len(me.children(recursive=True))
