"""What both shells tell httpx: where the server is, who asks, the time limits, and how a `Call` becomes a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from relaxc.service.client.flow import Call
from relaxc.service.client.job import Event
from relaxc.service.client.retry import Patience
from relaxc.service.errors import InvalidOption

__all__ = ["Connection", "told"]

_CONNECT_S = 10.0
_STREAM_SILENCE_S = 45.0
"""An event stream has a comment every 15 s."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a server. `timeout_s` is how long it may be silent within one answer, or one part of an upload.

    `key` is an API key's secret. A proxy and the authority of a certificate come from HTTPS_PROXY and SSL_CERT_FILE.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        try:
            address = httpx.URL(self.url)
            known = address.scheme in ("http", "https") and re.fullmatch(r"[^\s/%]+", address.host) is not None
        except httpx.InvalidURL:
            known = False
        if not known:
            raise InvalidOption(
                f"the server's address must be like http://HOST:8000, got {self.url!r}",
                remedy="Give --server or RELAXC_SERVER the address that `relaxc serve` prints.",
                option="server",
            )

    def settings(self) -> dict[str, Any]:
        """Return arguments of httpx's clients."""
        headers = {"User-Agent": "relaxc-client", "Accept": "application/json, */*"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return {"base_url": self.url, "headers": headers}

    def _timeout(self, call: Call) -> httpx.Timeout:
        silence_s = _STREAM_SILENCE_S if call.stream else call.timeout_s or self.timeout_s
        return httpx.Timeout(silence_s, connect=min(_CONNECT_S, self.timeout_s))

    @contextmanager
    def request(self, http: httpx.Client | httpx.AsyncClient, call: Call) -> Iterator[httpx.Request]:
        """Give the request, whose files are open until it was sent."""
        with ExitStack() as opened:
            parts = [(name, (path.name, opened.enter_context(path.open("rb")))) for name, path in call.files]
            headers = {**call.headers, "Accept-Encoding": "identity"} if call.stream else dict(call.headers)
            yield http.build_request(
                call.method,
                call.path,
                params=call.params or None,
                headers=headers,
                json=call.json,
                content=call.content,
                files=parts or None,
                timeout=self._timeout(call),
            )


def told(event: Event, listener: Callable[[dict[str, Any]], None] | None) -> None:
    """Tell the listener of a compile what a local one would hear."""
    if listener is not None and event.kind not in ("state", "done"):
        listener({"event": event.kind, **event.data})
