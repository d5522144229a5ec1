"""An answer that is given before the request's body was read."""

from __future__ import annotations

import asyncio

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

__all__ = ["EarlyAnswer"]

_DRAIN_S = 2.0
_DRAIN_BYTES = 256 << 20


class EarlyAnswer(JSONResponse):
    """An answer given before the request's body was read.

    A server that closes a connection with unread data resets it, and a client that is still sending may never
    see the answer. So the whole answer is sent, then what comes is thrown away for at most two seconds and 256 MiB
    (a local client sends 2 GB/s), then the connection closes.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer and drains the request."""
        self.headers["Connection"] = "close"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        drained = 0
        try:
            async with asyncio.timeout(_DRAIN_S):
                while drained < _DRAIN_BYTES and (message := await receive()).get("more_body"):
                    drained += len(message.get("body", b""))
        except (TimeoutError, HTTPException):  # the second: it is too slow or too large, which has been answered
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
