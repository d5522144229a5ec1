"""Who asks: the owner behind a request, by its key, or everybody where the server has no keys."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

from anyio import to_thread
from fastapi import Request

from service.errors import Forbidden, RateLimited, Unauthorized
from service.jobs.database.rows import LOCAL_OWNER, Owner
from service.jobs.objects.keys import Keys

__all__ = ["Anonymous", "Gate", "require"]

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
        row = None if secret is None else self._keys.seen(secret)
        if row is None and secret is not None:
            row = await to_thread.run_sync(self._keys.find, secret)
        if row is not None:
            return row.owner
        if secret is not None:
            self._count_failure(request.client.host if request.client else "")
            raise Unauthorized("the key is unknown, expired or revoked")
        raise Unauthorized("this call needs a key")

    async def _serves_anybody(self) -> bool:
        if self._anonymous is not Anonymous.WITHOUT_KEYS:
            return self._anonymous is Anonymous.ALWAYS
        made = self._keys.any_made_seen()
        return not (await to_thread.run_sync(self._keys.any_made) if made is None else made)

    def _count_failure(self, address: str) -> None:
        """Raise RateLimited for an address that has had its share."""
        now = time.monotonic()
        count, since = self._failures.get(address, (0, now))
        if now - since > _WINDOW_S:
            count, since = 0, now
        if len(self._failures) >= _MAX_ADDRESSES:
            self._failures.clear()
        self._failures[address] = count + 1, since
        if count >= _FAILURES:
            wait_s = max(1, round(since + _WINDOW_S - now))
            raise RateLimited(f"{count} requests with refused keys from {address} in a minute", retry_after_s=wait_s)


def _check_origin(request: Request, *, on_loopback: bool) -> None:
    """Keeps web pages of others, open in a browser beside us, from speaking to a server that asks for no key.

    `Origin` tells a page of another site; a name of its own that its site resolves to 127.0.0.1 ("DNS rebinding")
    shows as the `Host`.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if origin is not None and _parts(origin).netloc.lower() != host.lower():
        raise Forbidden("a page of another site may not ask without a key", remedy="Make a key: relaxc keys create.")
    if on_loopback and not _is_loopback(_parts(f"//{host}").hostname or ""):
        raise Forbidden(f"{host[:80]!r} is no name of this machine's loopback", remedy="Ask http://127.0.0.1 instead.")


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:  # a bracket too few
        raise Forbidden(f"{url[:80]!r} is no address", remedy="Ask http://127.0.0.1 instead.") from error


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _secret_of(request: Request) -> str | None:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" and secret.strip() else None


def require(*scopes: str) -> Callable[[Request], Awaitable[Owner]]:
    """Return the dependency of a call that needs one of these scopes; 401 and 403 are said as the contract has them."""

    async def owner(request: Request) -> Owner:
        gate: Gate = request.app.state.gate
        found = await gate.owner(request, _secret_of(request))
        request.state.owner = found
        if found.scopes.isdisjoint(scopes):
            wanted = " or ".join(scopes)
            raise Forbidden(f"this call needs the scope {wanted}", scope=wanted, has=sorted(found.scopes))
        return found

    return owner
