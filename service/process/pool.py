"""Runs tasks in child processes: warm zygotes by flavour, and each task in a fresh fork of one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from relaxc.service.errors import Cancelled, CompilerCrashed, RelaxcError, ServiceError
from relaxc.service.process.bounds import bounded
from relaxc.service.process.failures import error_of_ending, with_context
from relaxc.service.process.flavour_zygote import FlavourZygote, ZygoteGone
from relaxc.service.process.heard import Heard
from relaxc.service.process.task import Emit, Flavour, Lines, Task, send
from relaxc.service.process.unnamed import without_paths

__all__ = ["Cancellation", "Helper", "Pool"]

Helper = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], None]
"""Is called with what a child asks for, a stranger's word, and with what sends it an answer; it must not wait."""

_GRACE_S = 90.0
"""How long after the time limit the guard may take to say that it has ended the job."""

_ATTEMPTS = 3


class Cancellation:
    """Cancels one running task, from any thread, once or often, before or while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Kill the task's processes; `Pool.run` then raises Cancelled."""
        with self._lock:
            self._cancelled = True
            if self._channel is not None:
                _hang_up(self._channel)

    def attach(self, channel: socket.socket | None) -> None:
        """Hang this up from now on."""
        with self._lock:
            self._channel = channel
            if channel is not None and self._cancelled:
                _hang_up(channel)


def _hang_up(channel: socket.socket) -> None:
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_WR)


class Pool:
    """Warm workers by flavour. Threads may call `run` at the same time, each for a process of its own.

    `groups` is the folder in which each task gets a control group, None where there is none.
    """

    def __init__(self) -> None:
        self.groups: Path | None = None
        self._zygotes: dict[Flavour, FlavourZygote] = {}
        self._running: set[Cancellation] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm(self, *flavours: Flavour) -> None:
        """Start the zygotes of these flavours, without waiting for their imports."""
        for flavour in flavours:
            self._zygote(flavour)

    def pids(self) -> dict[Flavour, int]:
        """Return the process id of each zygote that runs."""
        with self._lock:
            return {flavour: zygote.pid for flavour, zygote in self._zygotes.items() if zygote.alive}

    @property
    def running(self) -> int:
        """How many tasks run."""
        with self._lock:
            return len(self._running)

    def ready(self) -> dict[Flavour, dict[str, Any]]:
        """Return the flavours whose workers could fork a job now, and its sandbox (`Sandbox.to_dict()`)."""
        with self._lock:
            zygotes = dict(self._zygotes)
        return {name: zygote.sandbox or {} for name, zygote in zygotes.items() if zygote.alive and zygote.is_ready()}

    def run(
        self, task: Task, on_event: Emit, *, cancellation: Cancellation | None = None, helper: Helper | None = None
    ) -> dict[str, Any]:
        """Run the task, and return its `result` event's fields; other events go to `on_event`, in this thread.

        What it asks for goes to `helper`, also in this thread.

        When this returns or raises, no process of the task is left. Raise the RelaxcError that the task raised, or
        CompilerCrashed, CompilerOutOfMemory, CompilerTimeout, Cancelled.
        """
        cancellation = cancellation or Cancellation()
        with self._lock:
            self._running.add(cancellation)
        try:
            return self._run(task, on_event, cancellation, helper)
        finally:
            with self._lock:
                self._running.discard(cancellation)

    def _run(self, task: Task, on_event: Emit, cancellation: Cancellation, helper: Helper | None) -> dict[str, Any]:
        for _ in range(_ATTEMPTS):
            if cancellation.cancelled:
                raise Cancelled("the compile was cancelled before it started", stage=None)
            zygote = self._zygote(task.flavour)
            with contextlib.suppress(ZygoteGone):
                heard = self._attempt(zygote, task, on_event, cancellation, helper)
                # Without a pid the zygote died before it forked: nothing has run, so another one may try.
                if heard.pid is not None or cancellation.cancelled:
                    return _outcome(heard, task, cancellation.cancelled)
            self._forget(task.flavour, zygote)
        raise CompilerCrashed(f"the worker died {_ATTEMPTS} times before the compile could start", stage="start")

    def _attempt(
        self,
        zygote: FlavourZygote,
        task: Task,
        on_event: Emit,
        cancellation: Cancellation,
        helper: Helper | None = None,
    ) -> Heard:
        heard = Heard()
        try:
            channel = zygote.channel()
        except CompilerCrashed:
            self._forget(task.flavour, zygote)
            raise
        with channel:
            if helper is not None:
                lock = threading.Lock()
                answer = partial(_answer, channel, lock)
                heard.asked = lambda message: helper(message, answer)
            try:
                with contextlib.suppress(OSError):
                    send(channel, {**task.to_dict(), "groups": None if self.groups is None else str(self.groups)})
                cancellation.attach(channel)
                _listen(channel, heard, on_event, time.monotonic() + task.limits.timeout_s + _GRACE_S)
            finally:
                cancellation.attach(None)
                if heard.ending is None:
                    _end_without_guard(channel, heard)
        return heard

    def _zygote(self, flavour: Flavour) -> FlavourZygote:
        with self._lock:
            if self._closed:
                raise ServiceError("the service is shutting down")
            zygote = self._zygotes.get(flavour)
            if zygote is None or not zygote.alive:
                if zygote is not None:
                    zygote.close()
                zygote = self._zygotes[flavour] = FlavourZygote(flavour)
            return zygote

    def _forget(self, flavour: Flavour, zygote: FlavourZygote) -> None:
        with self._lock:
            if self._zygotes.get(flavour) is zygote:
                del self._zygotes[flavour]
        zygote.close()

    def close(self) -> None:
        """Cancel what runs and end the zygotes; no process is left."""
        with self._lock:
            self._closed = True
            zygotes, running = list(self._zygotes.values()), list(self._running)
            self._zygotes.clear()
        for cancellation in running:
            cancellation.cancel()
        for zygote in zygotes:
            zygote.close()


def _answer(channel: socket.socket, lock: threading.Lock, message: dict[str, Any]) -> None:
    """From any thread; nothing where the job has ended."""
    with contextlib.suppress(OSError), lock:
        send(channel, message)


def _listen(channel: socket.socket, heard: Heard, on_event: Emit, deadline: float) -> None:
    lines = iter(Lines(channel))
    while True:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            message = next(lines, None)
        except TimeoutError:
            heard.broke_off = "its guard does not answer"
            return
        except ValueError as error:
            heard.broke_off = f"it sent {error}"
            return
        if message is None:
            return
        heard.take(message, on_event)


def _end_without_guard(channel: socket.socket, heard: Heard) -> None:
    """Hangs up, which a guard that lives takes as the order to end the job, and gives it time for that.

    Where the guard itself was killed, the kernel has killed the job with it, and what the job had started is
    found by its session.
    """
    _hang_up(channel)
    _listen(channel, heard, lambda event: None, time.monotonic() + _GRACE_S)
    if heard.ending is not None or heard.pid is None:
        return
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == heard.pid:
                process.kill()


def _outcome(heard: Heard, task: Task, cancelled: bool) -> dict[str, Any]:
    if heard.broke_off:
        error: RelaxcError = CompilerCrashed(f"the compiling process broke off: {heard.broke_off}", signal=None)
    elif heard.error is not None:
        error = bounded(RelaxcError.from_dict(heard.error))
    elif heard.ending is None and cancelled:
        error = Cancelled("the compile was cancelled")
    elif heard.ending is None or heard.ending.cause != "exit" or heard.ending.exit_code != 0:
        error = error_of_ending(heard.ending, task, heard.stage)
    elif heard.result is None:
        error = CompilerCrashed("the compiling process ended without a result", signal=None)
    else:
        return heard.result
    error = with_context(error, task, heard.stage)
    # Whoever has a job done under a user of its own is somebody else than who runs this process.
    raise without_paths(error, task) if task.confinement.own_user else error
