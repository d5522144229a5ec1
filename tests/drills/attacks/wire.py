"""HTTP by hand: bytes that no client library would send, and whatever comes back."""

from __future__ import annotations

import contextlib
import io
import json
import select
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any

__all__ = ["CLOSED", "Address", "Answer", "chunk", "exchange", "head", "pieces", "request"]

Address = tuple[str, int]
_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; status 0 is a connection that was closed without one."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def outcome(self) -> tuple[int, str]:
        """Status and problem code, which is empty for what is no problem."""
        if not self.status:
            return 0, "closed"
        is_problem = self.header("content-type") == "application/problem+json"
        return self.status, str(self.json["code"]) if is_problem and self.body else ""

    def header(self, name: str) -> str:
        """Its value, empty where it is not there."""
        return next((value for found, value in self.headers if found == name), "")


CLOSED = Answer(0)


def head(method: str, path: str, key: str | None = None, *headers: str) -> bytes:
    """A request's head, to be followed by a body as `headers` say; the connection is for this one."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += [f"Authorization: Bearer {key}"] if key is not None else []
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1")


def request(method: str, path: str, key: str | None = None, *headers: str, body: bytes | None = None) -> bytes:
    """A whole request, its length told."""
    if body is None:
        return head(method, path, key, *headers)
    return head(method, path, key, *headers, f"Content-Length: {len(body)}") + body


def chunk(data: bytes) -> bytes:
    """One chunk of a body without a length; an empty one ends it."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def pieces(data: bytes, pause_s: float, size: int = 1) -> Iterator[bytes]:
    """The bytes, a few at a time."""
    for start in range(0, len(data), size):
        yield data[start : start + size]
        time.sleep(pause_s)


def exchange(address: Address, data: bytes | Iterable[bytes], method: str = "GET") -> list[Answer]:
    """Sends until all is sent, something comes back or the other side has had enough; every answer until it closes."""
    found = bytearray()
    with socket.create_connection(address, timeout=_TIMEOUT_S) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in [data] if isinstance(data, bytes) else data:
                if select.select([connection], [], [], 0)[0]:
                    break
                connection.sendall(piece)
        with contextlib.suppress(ConnectionError):
            while received := connection.recv(1 << 18):
                found += received
    return list(_answers(bytes(found), method)) or [CLOSED]


class _Stream(io.BytesIO):
    """Stands for a socket, and survives the end of the first response."""

    def makefile(self, mode: str) -> _Stream:
        return self

    def close(self) -> None:
        """Not yet: another may follow."""


def _answers(data: bytes, method: str) -> Iterator[Answer]:
    stream = _Stream(data)
    while stream.tell() < len(data):
        response = HTTPResponse(stream, method=method)  # type: ignore[arg-type]  # all that it asks of a socket
        try:
            response.begin()
            body = response.read()
        except HTTPException:  # cut off in the middle
            return
        headers = tuple((name.lower(), value) for name, value in response.getheaders())
        yield Answer(response.status, headers, body)
