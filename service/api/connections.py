"""uvicorn's HTTP/1.1 connections, with limits on what a client may hold: headers, unread answers, connections."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from relaxc.service.api.problems import of_http
from relaxc.service.config import settings

__all__ = ["Connection"]

_WRITE_STALL_S = 60.0
"""How long the client may take for what was written to go below asyncio's low-water mark; at most a mebibyte waits."""


class Connection(H11Protocol):
    """One client. It is closed when a request's header is not whole `header_timeout_s` after its first byte (or after
    the connection was made), and broken off when the client reads nothing of an answer for a minute.

    Over `max_connections` one that waits for a request is closed to make room, so that idle clients keep nobody out.
    Where all are at work a request is answered with 503 and its connection closed.
    """

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start the clock for the first request."""
        super().connection_made(transport)
        self._idle_since = time.monotonic()
        if len(self.connections) > settings().max_connections and not self._make_room():
            self.app = _too_many
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the clock runs from the first byte of a header to its last."""
        if self._header_timer is None and self._between_requests:
            self._expect_header()
        super().data_received(data)
        if not self._between_requests:
            self._stop("_header_timer")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop("_header_timer")
        self._stop("_write_timer")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start a clock: the client reads more slowly than we write."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(_WRITE_STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop it: the client has read."""
        self._stop("_write_timer")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a problem too."""
        answer = of_http("bad-request", headers={"Connection": "close"})
        head = b"".join(b"%s: %s\r\n" % pair for pair in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 %s\r\n%s\r\n%s" % (STATUS_PHRASES[400], head, bytes(answer.body)))
        self.transport.close()

    def on_response_complete(self) -> None:
        """Note since when the connection waits for its next request."""
        self._idle_since = time.monotonic()
        super().on_response_complete()

    def _make_room(self) -> bool:
        """Close connections that wait for a request: those idle the longest, of the address that has the most, and
        last those of which an answer is still being sent. Return whether there were any. Many go at once, since looking
        for them takes a while.
        """
        others = (each for each in self.connections if isinstance(each, Connection) and each is not self)
        idle = [each for each in others if each._between_requests]
        held = Counter(each._address for each in idle)
        idle.sort(key=lambda each: (each._unsent > 0, -held[each._address], each._idle_since))
        for each in idle[: max(1, settings().max_connections // 16)]:
            self.connections.discard(each)
            each.transport.abort()
        return bool(idle)

    @property
    def _unsent(self) -> int:
        return int(self.transport.get_write_buffer_size())

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_header(self) -> None:
        self._header_timer = self.loop.call_later(settings().header_timeout_s, self.transport.close)

    def _stop(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)


async def _too_many(scope: Scope, receive: Receive, send: Send) -> Any:
    answer = of_http("too-many-connections", headers={"Connection": "close", "Retry-After": "10"})
    await answer(scope, receive, send)
