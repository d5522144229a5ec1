"""Limits on the body of every request while it comes in: its size, and its pace."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relaxc.service.config import settings

__all__ = ["JSON_MAX_BYTES", "Bodies", "Body", "body_of"]

JSON_MAX_BYTES = 64 << 10
"""Of a body that is read whole. The longest that means something has a target of 16 KiB and some hundred shapes."""

WINDOW_BYTES = 64 << 10
"""What must come in each `body_timeout_s`, unless the body ends before."""

_SCOPE_KEY = "relaxc.body"


class Body:
    """A request's body on its way in; it stands for the server's `receive`.

    Raises HTTPException 413 past `max_bytes` (a call that streams sets it to None and counts for itself), and 408 when
    a window's bytes take longer than the setting. Only the time in which the server waits for the sender counts.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.max_bytes: int | None = JSON_MAX_BYTES
        headers = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
        length = headers.get(b"content-length", b"0" if b"transfer-encoding" not in headers else b"")
        self.announced_bytes = int(length) if length.isdigit() else None
        self._whole = self.announced_bytes == 0
        self._receive = receive
        self._taken = self._in_window = 0
        self._left_s = settings().body_timeout_s

    @property
    def unread(self) -> bool:
        """Whether some of it is still to come."""
        return not self._whole

    async def __call__(self) -> Message:
        """The next message of the body; afterwards, whatever the server has to say."""
        if self._whole:
            return await self._receive()
        if self.max_bytes is not None and (self.announced_bytes or 0) > self.max_bytes:
            raise HTTPException(413, f"the body has over {self.max_bytes} bytes")
        message = await self._in_time()
        self._count(len(message.get("body", b"")))
        self._whole = message["type"] == "http.disconnect" or not message.get("more_body")
        return message

    async def _in_time(self) -> Message:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(self._left_s):
                message = await self._receive()
        except TimeoutError as error:
            raise HTTPException(408, "the body came too slowly") from error
        self._left_s -= loop.time() - begun
        return message

    def _count(self, size: int) -> None:
        self._taken += size
        self._in_window += size
        if self.max_bytes is not None and self._taken > self.max_bytes:
            raise HTTPException(413, f"the body has over {self.max_bytes} bytes")
        if self._in_window >= WINDOW_BYTES:
            self._in_window, self._left_s = 0, settings().body_timeout_s


class Bodies:
    """ASGI middleware: puts a `Body` between the server and the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, its body guarded."""
        if scope["type"] == "http":
            receive = scope[_SCOPE_KEY] = Body(scope, receive)
        await self._app(scope, receive, send)


def body_of(request: Request | Any) -> Body:
    """Return the body of this request."""
    body: Body = request.scope[_SCOPE_KEY]
    return body
