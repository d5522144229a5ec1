"""A job's line to who runs it: what it tells goes out, and the answers to what it asks come in."""

from __future__ import annotations

import socket
import threading
from typing import Any

from relaxc.service.process.task import ASK, Lines, send

__all__ = ["Line"]


class Line:
    """Is called with each event, from any thread. One thread reads answers, once a poll says that some have come."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lines = Lines(channel)
        self._lock = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        """Tell an event."""
        with self._lock:
            send(self._channel, event)

    def ask(self, question: dict[str, Any]) -> None:
        """Ask for something; whether there is somebody to answer is for who asks to know."""
        self({**question, "event": ASK})

    def fileno(self) -> int:
        """Return what to poll for answers."""
        return self._channel.fileno()

    def answers(self) -> list[dict[str, Any]]:
        """Return what has come, waiting for bytes where there are none. Raise EOFError where who ran us has gone."""
        found = self._lines.next()
        if found is None:
            raise EOFError
        return found
