"""The tuner's side of the process that imports tvm once and forks every worker, and of those workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from relaxc.service.errors import CompilerCrashed
from relaxc.service.process.scrubbed import for_zygotes
from relaxc.service.process.zygote import Zygote

__all__ = ["CLOSE", "TuneZygote", "Worker"]

CLOSE = b"close"
"""The last message of a tuner that ends in good order."""

_START_LIMIT_S = 120.0
_END_LIMIT_S = 10.0
_TAIL_BYTES = 2000


class Worker:
    """A forked process with one end of a connection; `log` is where its stderr goes."""

    def __init__(self, pid: int, connection: Connection, log: Path, zygote: TuneZygote, generation: int) -> None:
        self.pid = pid
        self.connection = connection
        self.log = log
        self._zygote, self._generation = zygote, generation
        try:
            self._handle: int | None = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended already
            self._handle = None

    def end(self) -> str:
        """Kill it if it still runs; return how it ended, for people."""
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            os.close(self._handle)
            self._handle = None
        self.connection.close()
        how = _described(self._zygote.status_of(self.pid, self._generation))
        said = _last_words(self.log)
        self.log.unlink(missing_ok=True)
        return f"{how}: {said}" if said else how


class TuneZygote:
    """Starts when the first worker is wanted, and again should it be killed. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """`folder` gets the logs; the process removes it should this one be killed."""
        self._folder = folder
        self._zygote: Zygote | None = None
        self._ended: dict[int, int] = {}
        self._count = self._generation = 0
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the process, without waiting for its imports; nothing if it runs."""
        with self._lock:
            if self._zygote is None or not self._zygote.alive:
                self._stop()
                self._start()

    def spawn(self, role: str, config: dict[str, Any]) -> Worker:
        """Start a worker of a role (see `worker`). Raise CompilerCrashed where none can be started."""
        with self._lock:
            for _ in range(3):
                self.start()
                try:
                    return self._spawn(role, config)
                except (OSError, EOFError):  # the zygote was killed: start another
                    self._stop()
            raise CompilerCrashed("no worker can be started for tuning", log_tail=self._tail())

    def status_of(self, pid: int, generation: int) -> int | None:
        """Return the wait status of a worker that has ended; None where the zygote that forked it is gone."""
        with self._lock:
            deadline = time.monotonic() + _END_LIMIT_S
            while pid not in self._ended and time.monotonic() < deadline:
                if self._zygote is None or generation != self._generation:
                    return None
                try:
                    self._receive(deadline)
                except (OSError, EOFError):
                    return None
            return self._ended.pop(pid, None)

    def close(self) -> None:
        """End the process and every worker. May be called twice."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._generation += 1
        arguments = ["--parent", str(os.getpid()), "--folder", str(self._folder)]
        with (self._folder / "zygote.log").open("ab") as log:
            self._zygote = Zygote("relaxc.service.tuning.measure.worker", arguments, for_zygotes(os.environ), log)

    def _spawn(self, role: str, config: dict[str, Any]) -> Worker:
        assert self._zygote is not None
        self._count += 1
        log = self._folder / f"{role}-{self._count}.log"
        channel = self._zygote.fork(json.dumps({"role": role, "log": str(log), **config}).encode())
        try:
            pid = None
            while pid is None:
                pid = self._receive(time.monotonic() + _START_LIMIT_S)
        except BaseException:
            channel.close()
            raise
        return Worker(pid, Connection(channel.detach()), log, self, self._generation)

    def _receive(self, deadline: float) -> int | None:
        """The pid in a message about a new worker; an ending is noted."""
        assert self._zygote is not None
        self._zygote.control.settimeout(max(0.01, deadline - time.monotonic()))
        message = self._zygote.control.recv(1 << 12)
        if not message:
            raise EOFError
        said = json.loads(message)
        if "ended" in said:
            self._ended[said["ended"]] = said["status"]
            return None
        return int(said["pid"])

    def _stop(self) -> None:
        if self._zygote is not None:
            with contextlib.suppress(OSError):  # it was killed
                self._zygote.control.send(CLOSE)
            self._zygote.control.close()
            self._zygote.end(_END_LIMIT_S)
            self._zygote = None
        self._ended.clear()

    def _tail(self) -> str:
        log = self._folder / "zygote.log"
        return log.read_text(errors="replace")[-_TAIL_BYTES:] if log.exists() else ""


def _described(status: int | None) -> str:
    if status is None:
        return "it was killed"
    if os.WIFSIGNALED(status):
        return f"it was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"it left with exit code {os.WEXITSTATUS(status)}"


def _last_words(log: Path) -> str:
    """The last line that does not belong to a trace of the stack."""
    try:
        lines = log.read_text(errors="replace")[-_TAIL_BYTES:].splitlines()
    except OSError:
        return ""
    spoken = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "Current thread", "Thread"))]
    fatal = [line for line in spoken if line.startswith("Fatal")]
    return (fatal or spoken or [""])[-1][:300]
