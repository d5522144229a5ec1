"""What the calls of one owner hold of a server, so that no owner keeps others waiting: connections, and turns."""

from __future__ import annotations

import asyncio

from starlette.datastructures import State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relaxc.service.config import settings
from relaxc.service.errors import RateLimited

__all__ = ["EndCalls", "Shares"]

_CONNECTIONS = 4
_TURNS = 2
"""Calls of one owner that are worked on at once. More would be no faster, as Python runs one thread at a time."""


class _Share:
    """What one owner holds."""

    def __init__(self) -> None:
        self.calls = 0
        self.turns = asyncio.Semaphore(_TURNS)


class _Call:
    """A call from its key's being known to its end."""

    def __init__(self, shares: dict[str, _Share], owner: str) -> None:
        self._shares = shares
        self._owner = owner
        self._share = shares.setdefault(owner, _Share())
        self._share.calls += 1
        self._has_turn = False

    async def take_turn(self) -> None:
        await self._share.turns.acquire()
        self._has_turn = True

    def end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._share.turns.release()

    def end(self) -> None:
        self.end_turn()
        self._share.calls -= 1
        if not self._share.calls:
            self._shares.pop(self._owner, None)


class Shares:
    """The calls of one application that are open, by owner."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}

    async def begin(self, state: State, owner: str) -> None:
        """Begin the call of an owner when it is its turn; `EndCalls` ends it.

        Raise RateLimited where the owner has a quarter of the server's connections at work.
        """
        most = max(1, settings().max_connections // _CONNECTIONS)
        if owner in self._shares and self._shares[owner].calls >= most:
            raise RateLimited(f"{most} calls of this owner are open, and it may have no more", retry_after_s=1)
        state.call = call = _Call(self._shares, owner)
        await call.take_turn()


class EndCalls:
    """ASGI middleware: a call's turn is over when it waits for its sender or begins to answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        state = scope.setdefault("state", {})

        def end_turn() -> None:
            if "call" in state:
                state["call"].end_turn()

        async def received() -> Message:
            end_turn()
            return await receive()

        async def sent(message: Message) -> None:
            end_turn()
            await send(message)

        try:
            await self._app(scope, received, sent)
        finally:
            if "call" in state:
                state.pop("call").end()
