"""How many calls of one owner are open at once, so that its streams and slow bodies leave connections to others."""

from __future__ import annotations

from collections import Counter

from starlette.types import ASGIApp, Receive, Scope, Send

from relaxc.service.config import settings
from relaxc.service.errors import RateLimited

__all__ = ["OpenCalls", "ReleaseCalls"]

_SHARE = 4


class OpenCalls:
    """Counts the calls of one application by owner."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def take(self, owner: str) -> None:
        """Count a call. Raise RateLimited where the owner has a quarter of the server's connections at work."""
        most = max(1, settings().max_connections // _SHARE)
        if self._open[owner] >= most:
            raise RateLimited(f"{most} calls of this owner are open, and it may have no more", retry_after_s=1)
        self._open[owner] += 1

    def release(self, owner: str) -> None:
        """Forget a call that has ended."""
        self._open[owner] -= 1
        if not self._open[owner]:
            del self._open[owner]


class ReleaseCalls:
    """ASGI middleware: ends the count of a call that `state.counted_for` says was taken."""

    def __init__(self, app: ASGIApp, open_calls: OpenCalls) -> None:
        self._app = app
        self._open_calls = open_calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        try:
            await self._app(scope, receive, send)
        finally:
            if owner := scope.get("state", {}).pop("counted_for", None):
                self._open_calls.release(owner)
