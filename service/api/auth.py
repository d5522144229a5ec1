"""Who asks: the owner behind a request, by its key, or everybody where the server has no keys."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from anyio import sleep, to_thread
from fastapi import Request

from relaxc.service.errors import Forbidden, RateLimited, Unauthorized
from relaxc.service.jobs.database.rows import LOCAL_OWNER, Owner
from relaxc.service.jobs.objects.keys import Keys

__all__ = ["Anonymous", "Gate", "require", "while_allowed"]

T = TypeVar("T")

_PAUSE_S = 0.1
_LOOK_S = 0.5
"""How often a stream looks whether its key is still in force."""

_WINDOW_S = 60.0
_FAILURES = 20
"""Refused keys from one address in a minute, after which it is answered with 429. A key that is right is never refused
for it: behind a proxy or a NAT one address is many senders."""

_MAX_ADDRESSES = 10_000


class Anonymous(StrEnum):
    """Whether requests without a key are served."""

    NEVER = "never"
    WITHOUT_KEYS = "without keys"
    """On loopback, as long as no key was ever made."""
    ALWAYS = "always"
    """`--no-auth`."""


class Gate:
    """Decides for each request of one server who asks."""

    def __init__(self, keys: Keys, anonymous: Anonymous) -> None:
        self._keys = keys
        self._anonymous = anonymous
        self._failures: dict[str, tuple[int, float]] = {}

    async def owner(self, request: Request, secret: str | None) -> Owner:
        """Raise Unauthorized, RateLimited, or Forbidden for a web page that is not ours."""
        if secret is None and await self._serves_anybody():
            _check_origin(request, on_loopback=self._anonymous is Anonymous.WITHOUT_KEYS)
            return LOCAL_OWNER
        if secret is None:
            raise Unauthorized("this call needs a key")
        if row := self._keys.seen(secret):
            return row.owner
        address = request.client.host if request.client else ""
        if not self._may_ask(address) and not await self._is_known(secret):
            self._count_failure(address)
        if row := await to_thread.run_sync(self._keys.find, secret):
            return row.owner
        self._count_failure(address)
        raise Unauthorized("the key is unknown, expired or revoked")

    async def allows(self, secret: str | None) -> bool:
        """Return whether a sender that was let in would be now: its key may have been revoked."""
        if secret is None:
            return await self._serves_anybody()
        return (self._keys.seen(secret) or await to_thread.run_sync(self._keys.find, secret)) is not None

    async def _serves_anybody(self) -> bool:
        if self._anonymous is not Anonymous.WITHOUT_KEYS:
            return self._anonymous is Anonymous.ALWAYS
        made = self._keys.any_made_seen()
        return not (await to_thread.run_sync(self._keys.any_made) if made is None else made)

    def _may_ask(self, address: str) -> bool:
        """Whether a key from there that nobody knows may cost a look into the database."""
        return self._failed(address)[0] < _FAILURES

    def _failed(self, address: str) -> tuple[int, float]:
        """The refused keys of an address in its minute, and since when that runs."""
        now = time.monotonic()
        count, since = self._failures.get(address, (0, now))
        return (0, now) if now - since > _WINDOW_S else (count, since)

    async def _is_known(self, secret: str) -> bool:
        since = time.monotonic()
        while (known := await to_thread.run_sync(self._keys.is_known, secret, since)) is None:
            await sleep(_PAUSE_S)
        return known

    def _count_failure(self, address: str) -> None:
        """Raise RateLimited for an address that has had its share."""
        count, since = self._failed(address)
        if len(self._failures) >= _MAX_ADDRESSES:
            self._failures.clear()
        self._failures[address] = count + 1, since
        if count >= _FAILURES:
            wait_s = max(1, round(since + _WINDOW_S - time.monotonic()))
            raise RateLimited(f"{count} requests with refused keys from {address} in a minute", retry_after_s=wait_s)


def _check_origin(request: Request, *, on_loopback: bool) -> None:
    """Keeps web pages of others, open in a browser beside us, from speaking to a server that asks for no key.

    `Origin` tells a page of another site; a name of its own that its site resolves to 127.0.0.1 ("DNS rebinding")
    shows as the `Host`.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if origin is not None and _parts(origin).netloc.lower() != host.lower():
        raise Forbidden("a page of another site may not ask without a key", remedy="Make a key: relaxc keys create.")
    name = _parts(f"//{host}").hostname or ""
    if on_loopback and not _is_loopback(name):
        raise Forbidden(f"{host[:80]!r} is no name of this machine's loopback", remedy="Ask http://127.0.0.1 instead.")
    if not on_loopback and not _is_ours(name):
        raise Forbidden(
            f"{host[:80]!r} is no name of this machine's, and the server asks for no key",
            remedy=f"Ask it by its address, or as {socket.gethostname()}; a proxy should pass one of them as the Host.",
        )


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:  # a bracket too few
        raise Forbidden(f"{url[:80]!r} is no address", remedy="Ask http://127.0.0.1 instead.") from error


def _is_ours(name: str) -> bool:
    """Whether no other site can have the name: an address, this machine's host name, or one of loopback's."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        host = socket.gethostname().lower()
        return _is_loopback(name) or name.lower() in (host, host.partition(".")[0])
    return True


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _secret_of(request: Request) -> str | None:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" and secret.strip() else None


async def while_allowed(request: Request, rows: AsyncGenerator[T]) -> AsyncIterator[T]:
    """Yield what `rows` does, and end within a second of the revocation of the request's key."""
    gate, secret = request.app.state.gate, _secret_of(request)
    end: Any = object()
    async with aclosing(rows):
        while await gate.allows(secret):
            coming = asyncio.ensure_future(anext(rows, end))
            try:
                while not (await asyncio.wait({coming}, timeout=_LOOK_S))[0]:
                    if not await gate.allows(secret):
                        return
                row: T = coming.result()
            finally:
                coming.cancel()
                await asyncio.wait({coming})
            if row is end:
                return
            yield row


def require(*scopes: str) -> Callable[[Request], Awaitable[Owner]]:
    """Return the dependency of a call that needs one of these scopes; 401 and 403 are said as the contract has them."""

    async def owner(request: Request) -> Owner:
        gate: Gate = request.app.state.gate
        found = await gate.owner(request, _secret_of(request))
        request.state.owner = found
        if found is not LOCAL_OWNER and not hasattr(request.state, "call"):
            await request.app.state.shares.begin(request.state, found.id)
        if found.scopes.isdisjoint(scopes):
            wanted = " or ".join(scopes)
            raise Forbidden(f"this call needs the scope {wanted}", scope=wanted, has=sorted(found.scopes))
        return found

    return owner
