"""Our side of a zygote: a process that has paid its imports once, and forks itself for each channel that it is sent."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

__all__ = ["Zygote"]


class Zygote:
    """`python -m MODULE --control FD ARGUMENTS`, which serves `forks.Forks` at the other end of `control`."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> None:
        """Start the process; it imports while the caller goes on. `log` gets what it prints."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # our own module
                [sys.executable, "-P", "-m", module, "--control", str(theirs.fileno()), *arguments],
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def fork(self, message: bytes) -> socket.socket:
        """Return our end of a socket whose other end a fresh fork has, which gets `message`.

        Raise OSError where there is no zygote any more.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                socket.send_fds(self.control, [message], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def wait(self, limit_s: float) -> int:
        """Return the exit code, minus the signal that ended it. Raise subprocess.TimeoutExpired."""
        return self._process.wait(limit_s)

    def kill(self) -> None:
        """End the process; what it forked is for itself to end, or not."""
        self._process.kill()

    def end(self, limit_s: float) -> None:
        """Return when it has ended, which it has been told to do by now; kill it after `limit_s`."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
