"""Requests that tell two lengths of one body: a proxy may believe the other, and take the rest for a next request."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from relaxc.service.api.problems import of_http

__all__ = ["OneLength"]

_LENGTHS = {b"content-length", b"transfer-encoding"}


class OneLength:
    """ASGI middleware: refuses Content-Length beside Transfer-Encoding, which h11 lets pass, and closes the connection
    (RFC 9112, 6.1)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] == "http" and {name for name, _ in scope["headers"]} >= _LENGTHS:
            answer = of_http(
                "bad-request",
                detail="the request has both Content-Length and Transfer-Encoding",
                headers={"Connection": "close"},
            )
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)
