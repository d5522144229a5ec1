"""The zygotes of jobs: one for each flavour, which gives a fresh guard for each task."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, NoReturn

from relaxc.service.errors import CompilerCrashed
from relaxc.service.process.early import take_early
from relaxc.service.process.failures import tail_of
from relaxc.service.process.scrubbed import scrubbed_environment, settings_of_jobs
from relaxc.service.process.task import Flavour
from relaxc.service.process.zygote import Zygote

__all__ = ["FlavourZygote", "ZygoteGone"]

_LOG = logging.getLogger("relaxc")
_START_LIMIT_S = 120.0
_END_LIMIT_S = 5.0
_READY_BYTES = 1 << 16
_SIGNALLED = 128
"""Over it are the exit codes of bwrap for a zygote that a signal has ended."""


class ZygoteGone(Exception):
    """The zygote died; start another one."""


class FlavourZygote:
    """A process that has imported what a flavour needs, and gives a socket to a fresh guard for each job."""

    def __init__(self, flavour: Flavour) -> None:
        """Starts the process; it imports while the caller goes on, and `channel` waits for it."""
        self._ready = self._closed = False
        self.sandbox: dict[str, Any] | None = None
        """That of its jobs, as `Sandbox.to_dict()`; None until it is ready."""
        self._lock = threading.Lock()
        early = take_early(str(flavour))
        # Without a name: a server that is killed leaves nothing of it.
        self._log: IO[bytes] = early.log if early else tempfile.TemporaryFile()  # noqa: SIM115  # lives with us
        self._zygote = early.zygote if early else _started(flavour, self._log)
        self._control = self._zygote.control
        if early is not None:
            with contextlib.suppress(OSError):  # it has died, as `wait_ready` will see
                self._control.send(json.dumps(settings_of_jobs()).encode())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._zygote.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._zygote.alive

    def wait_ready(self) -> None:
        """Wait until the imports are done. Raise CompilerCrashed when they fail, ZygoteGone when it was killed."""
        with self._lock:
            if self._closed:  # by another thread, which found it dead
                raise ZygoteGone
            if self._ready:
                return
            self._control.settimeout(_START_LIMIT_S)
            message = b""
            with contextlib.suppress(OSError):
                message = self._control.recv(_READY_BYTES)
            if not message:
                self._could_not_start()
            self._control.settimeout(None)
            self._take(message)

    def is_ready(self) -> bool:
        """Return whether its imports are done, without waiting for them."""
        if not self._ready and self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    message = self._control.recv(_READY_BYTES, socket.MSG_DONTWAIT)
                    if message:
                        self._take(message)
            finally:
                self._lock.release()
        return self._ready

    def _take(self, message: bytes) -> None:
        ready = json.loads(message)
        if ready["threads"] != 1:
            _LOG.warning("the worker has %d threads: a lock that one holds at a fork stays locked", ready["threads"])
        self.sandbox = ready["sandbox"]
        if gaps := ready["sandbox"].get("gaps"):
            _LOG.warning("a hostile model could %s; `relaxc doctor` says what would help", "; ".join(gaps))
        _LOG.info("a job's sandbox: %s", ready["sandbox"])
        self._ready = True

    def _could_not_start(self) -> NoReturn:
        try:
            code: int | None = self._zygote.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        if self._closed or (code is not None and (code < 0 or code > _SIGNALLED)):
            raise ZygoteGone
        why = f"it was not ready after {_START_LIMIT_S:g} s" if code is None else f"it left with exit code {code}"
        with Path(f"/proc/self/fd/{self._log.fileno()}").open("rb") as log:  # its own offset, not the worker's
            tail = tail_of(log)
        raise CompilerCrashed(f"the worker did not start: {why}", stage="start", log_tail=tail)

    def channel(self) -> socket.socket:
        """Our end of a socket whose other end a fresh guard has. Raise ZygoteGone, or CompilerCrashed as above."""
        self.wait_ready()
        try:
            return self._zygote.fork(b"guard")
        except OSError as error:
            raise ZygoteGone from error

    def close(self) -> None:
        """End the process. Guards and their jobs, which are not its to end, go on. May be called twice."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in `wait_ready`
        if not self._ready:
            self._zygote.kill()
        self._zygote.end(_END_LIMIT_S)
        with self._lock:  # nobody waits on them any more
            self._control.close()
            self._log.close()


def _started(flavour: Flavour, log: IO[bytes]) -> Zygote:
    return Zygote("relaxc.service.process.worker", ["--flavour", str(flavour)], scrubbed_environment(), log)
