"""What is known of every request afterwards: a log line, metrics, and of those that change something an audit row."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterable
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relaxc.service.api.audit import AuditLog
from relaxc.service.api.metrics import Metrics
from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.rows import AuditRow
from relaxc.service.jobs.objects.key_secrets import SECRET_PREFIX

__all__ = ["Observe"]

_LOG = logging.getLogger("relaxc.requests")
_CHANGES = frozenset(["POST", "PUT", "PATCH", "DELETE"])
_REQUEST_ID = re.compile(rb"[0-9A-Za-z._-]{1,64}")
_SECRET = re.compile(rf"{SECRET_PREFIX}[0-9A-Za-z]+")
_METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])


class _Seen:
    """What passes between server and application during one request."""

    def __init__(self, receive: Receive, send: Send, request_id: str) -> None:
        self.status = 0
        self.received = self.sent = 0
        self.location = self.cache = ""
        self._receive, self._send, self._id = receive, send, request_id.encode()

    async def receive(self) -> Message:
        message = await self._receive()
        self.received += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self._id)]
            self.location, self.cache = (_header(headers, name) for name in (b"location", b"cache-status"))
            message = {**message, "headers": headers}
        self.sent += len(message.get("body", b""))
        await self._send(message)


class Observe:
    """ASGI middleware, the outermost of ours. Log lines of a request have its `request` id, which is also answered."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and tells of it when its answer has been sent."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, begun = _request_id(scope), time.perf_counter()
        seen = _Seen(receive, send, request_id)
        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                await self._app(scope, seen.receive, seen.send)
            finally:
                self._tell(scope, seen, time.perf_counter() - begun, request_id)

    def _tell(self, scope: Scope, seen: _Seen, seconds: float, request_id: str) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requests.labels(method, route, str(seen.status)).observe(seconds)
        self._metrics.received.inc(seen.received)
        self._metrics.sent.inc(seen.sent)
        if seen.cache:
            self._metrics.submitted(_origin(seen.cache))
        owner = scope.get("state", {}).get("owner")
        facts: dict[str, Any] = {
            "method": method,
            "path": _shown(scope["path"]),
            "status": seen.status,
            "ms": round(seconds * 1e3, 1),
            "owner": getattr(owner, "id", None),
            "key": getattr(owner, "key", None),
            "address": (scope.get("client") or ("",))[0],
            "bytes_in": seen.received,
            "bytes_out": seen.sent,
        }
        _LOG.info("%s %s %s", method, facts["path"], seen.status, extra=facts)
        audit: AuditLog | None = getattr(scope["app"].state, "audit", None) if "app" in scope else None
        if audit is not None and owner is not None and method in _CHANGES:
            audit.add(_audit_row(scope, seen, facts, route, request_id))


def _audit_row(scope: Scope, seen: _Seen, facts: dict[str, Any], route: str, request_id: str) -> AuditRow:
    """The object is what the path names, or what the answer says was made."""
    named = "/".join(map(str, scope.get("path_params", {}).values()))
    return AuditRow(
        time=clock.now(),
        owner=facts["owner"],
        key=facts["key"],
        action=f"{facts['method']} {route}",
        object=_shown(named or seen.location),
        outcome=str(seen.status),
        address=facts["address"],
        detail={"request": request_id, "bytes": seen.received},
    )


def _header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == wanted), "")


def _origin(cache_status: str) -> str:
    """How a submitted job was answered, as our own Cache-Status says it."""
    for word, origin in (("hit", "hit"), ("repeated", "repeated"), ("collapsed", "joined")):
        if word in cache_status:
            return origin
    return "miss"


def _shown(path: str) -> str:
    """Its beginning, without the secret that somebody has sent where the id of a key belongs."""
    return _SECRET.sub(f"{SECRET_PREFIX}…", path)[:200]


def _request_id(scope: Scope) -> str:
    """The sender's X-Request-Id, where it is one, so that its log and ours can be joined; else a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
