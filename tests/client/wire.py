"""A wire to a server that breaks on purpose: the server and the client are real, what is between them is cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from tests.waiting import PATIENCE_S

__all__ = ["Cut", "Wire"]

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Cut:
    """One connection passes so many bytes up and down, then it is reset; None is without end."""

    up: int | None = None
    down: int | None = None


class Wire:
    """Relays each connection to `url`; the cuts that were asked for go to the next ones, one each."""

    def __init__(self, url: str) -> None:
        self._server = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.cuts: deque[Cut] = deque()
        self.connections = 0
        self.up = 0
        """Bytes that came from clients."""
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self, *cuts: Cut) -> None:
        """The next connections end so; those that are open end now, so that there are next ones."""
        self.cuts.extend(cuts)
        for side in list(self._open):
            _reset(side)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._connect, args=(client, self.cuts.popleft() if self.cuts else Cut()))
            thread.start()
            self._threads.append(thread)

    def _connect(self, client: socket.socket, cut: Cut) -> None:
        with client, socket.create_connection(self._server) as server:
            self._open |= {client, server}
            down = threading.Thread(target=self._relay, args=(server, client, cut.down, False))
            down.start()
            self._relay(client, server, cut.up, True)
            down.join()
            self._open -= {client, server}
        # Closed with bytes unread, they are reset. Shut down alone, they hold a sender for ever whose window is full.

    def _relay(self, source: socket.socket, sink: socket.socket, left: int | None, upwards: bool) -> None:
        with contextlib.suppress(OSError):
            while left is None or left > 0:
                data = source.recv(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
                if not data:
                    break
                self.up += len(data) if upwards else 0
                sink.sendall(data)
                left = None if left is None else left - len(data)
        for side in (source, sink):
            _reset(side)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _reset(self._listening)
        self._listening.close()
        for side in list(self._open):
            _reset(side)
        for thread in self._threads:
            thread.join(PATIENCE_S)


def _reset(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
