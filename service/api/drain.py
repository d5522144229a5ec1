"""The time between a server's being told to stop and its end: no new work is taken, what runs may end."""

from __future__ import annotations

import time

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from relaxc.service.api.problems import problem
from relaxc.service.errors import ServiceError

__all__ = ["Drain", "RefuseWork"]

_NEW_WORK = ("POST", "PUT")
_RETRY_AFTER_S = 30


class Drain:
    """Of one application: whether its server stops, and since when (`time.monotonic`)."""

    def __init__(self) -> None:
        self.since: float | None = None

    def begin(self) -> None:
        """Begin to drain. May be called twice."""
        if self.since is None:
            self.since = time.monotonic()


class RefuseWork:
    """ASGI middleware: while the application's server drains, calls that bring work get 503 and Retry-After."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] == "http" and scope["method"] in _NEW_WORK and scope["app"].state.drain.since is not None:
            error = ServiceError(
                "the server is shutting down, and takes no new work",
                remedy="Send it again: another server, or this one when it is back, will take it.",
                retry_after_s=_RETRY_AFTER_S,
            )
            await problem(error, Request(scope, receive))(scope, receive, send)
            return
        await self._app(scope, receive, send)
