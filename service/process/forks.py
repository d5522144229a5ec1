"""The zygote's side of it: a fork for each channel that comes in, and word of each fork that has ended."""

from __future__ import annotations

import os
import select
import socket
import time
import traceback
from collections.abc import Callable

__all__ = ["Forks"]

_MESSAGE_BYTES = 1 << 16


class Forks:
    """The forks of this process, which has one thread. `live` is what each of them does, with a message and a channel.

    In this process `forked` hears of each, and `ended` of its end, with its wait status.
    """

    def __init__(
        self,
        control: socket.socket,
        live: Callable[[bytes, int], None],
        *,
        forked: Callable[[int], None] = lambda pid: None,
        ended: Callable[[int, int], None] = lambda pid, status: None,
    ) -> None:
        self._control = control
        self._live, self._forked, self._ended = live, forked, ended
        self._pids: dict[int, int] = {}  # by the pidfd
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    @property
    def pids(self) -> set[int]:
        """The forks that have not been reaped."""
        return set(self._pids.values())

    def serve(self, until: int | None = None) -> bytes:
        """Fork until a message comes without a channel, and return it: empty where the other end has closed.

        Return an empty one too when the file `until` can be read.
        """
        if until is not None:
            self._poll.register(until, select.POLLIN)
        while True:
            ready = [fd for fd, _ in self._poll.poll()]
            if until in ready:
                return b""
            for fd in ready:
                if fd in self._pids:
                    self._bury(fd)
                    continue
                message, channels, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
                if not channels:
                    return message
                self._fork(message, channels[0])

    def drain(self, limit_s: float) -> None:
        """Return when every fork has ended, or after `limit_s`; none is forked any more."""
        self._poll.unregister(self._control)
        deadline = time.monotonic() + limit_s
        while self._pids and (left := deadline - time.monotonic()) > 0:
            for fd, _ in self._poll.poll(1000 * left):
                self._bury(fd)

    def _fork(self, message: bytes, channel: int) -> None:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                self._control.close()
                self._live(message, channel)
                code = 0
            except Exception:  # noqa: BLE001  # the end of a forked process: the trace goes to its log
                traceback.print_exc()
            finally:
                # No atexit handlers and no destructors: libraries tear down threads that the fork does not have.
                os._exit(code)
        os.close(channel)
        pidfd = os.pidfd_open(pid)
        self._pids[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._forked(pid)

    def _bury(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        pid = self._pids.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        self._ended(pid, status)
