"""Below HTTP: senders that are slow, heads that are none, two lengths for one body."""

from __future__ import annotations

from collections.abc import Iterator

from tests.drills.attacks.attack import ALSO_SLOWED, Attack, Target, sending
from tests.drills.attacks.wire import Answer, head, pieces

__all__ = ["attacks"]

_CLOSED = (0, "closed")
_BAD = (400, "bad-request")
_UNAUTHORIZED = (401, "unauthorized")
_TIMEOUT = (408, "request-timeout")
_PAUSE_S = 0.15
_TYPE = "Content-Type: multipart/form-data; boundary=BB"
_GET = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_SECOND = b"GET /v1/keys HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def _slow() -> Iterator[Attack]:
    heads = {
        "a request line": b"GET /" + b"x" * 500,
        "a header": _GET.encode() + b"X-Slow: " + b"x" * 500,
        "headers without end": _GET.encode() + b"X: y\r\n" * 200,
    }
    for name, data in heads.items():
        yield sending("slow head", name, {_CLOSED}, lambda target, data=data: pieces(data, _PAUSE_S))
    yield sending("slow head", "nothing at all", {_CLOSED}, lambda target: b"")
    for method, path, kind in (
        ("POST", "/v1/compile", _TYPE),
        ("POST", "/v1/models", _TYPE),
        ("POST", "/v1/jobs", "Content-Type: application/json"),
        ("POST", "/v1/records", "Content-Type: text/plain"),
        ("PUT", f"/v1/uploads/{'ab' * 32}", "Content-Type: application/octet-stream"),
    ):
        yield sending(
            "slow body",
            f"{method} {path[:20]}",
            {_TIMEOUT, (409, "upload-conflict")} if method == "PUT" else {_TIMEOUT},
            lambda target, method=method, path=path, kind=kind: _dripping(target, method, path, kind),
        )


def _dripping(target: Target, method: str, path: str, kind: str) -> Iterator[bytes]:
    key = "admin" if "records" in path else "attacker"
    yield head(method, path, target.keys[key], kind, "Content-Length: 60000")
    yield from pieces(b"-" * 1000, _PAUSE_S)


_NO_HTTP = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x64\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
    "NUL in a header": b"GET /healthz HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "bytes in the path": b"GET /v1/models\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "a megabyte of path": b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a megabyte of header": _GET.encode() + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n",
    "100 000 headers": _GET.encode() + b"X: y\r\n" * 100_000 + b"\r\n",
    "a million letters of authorization": _GET.encode() + b"Authorization: Bearer " + b"a" * 1_000_000 + b"\r\n\r\n",
}
_SECRETS = {"10 kB": "a" * 10_000, "bytes": "\xff\xfe", "two": "rk_a rk_b", "a tab": "rk_\ta"}

_POST = "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_TWO_LENGTHS = {
    "Content-Length and chunked": "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and Content-Length": "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two Content-Lengths": "Content-Length: 0\r\nContent-Length: 40\r\n\r\n",
    "a list of Content-Lengths": "Content-Length: 0, 40\r\n\r\n",
    "a signed Content-Length": "Content-Length: +5\r\n\r\nhello",
    "a negative Content-Length": "Content-Length: -5\r\n\r\n",
    "a Content-Length in hex": "Content-Length: 0x5\r\n\r\nhello",
    "a Content-Length of 5000 digits": f"Content-Length: {'9' * 5000}\r\n\r\nhello",
    "a Content-Length of letters": "Content-Length: many\r\n\r\nhello",
    "a space before the colon": "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "two Transfer-Encodings": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "an unknown Transfer-Encoding": "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a tab before chunked": "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a chunk of negative size": "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    "a chunk size of 5000 digits": f"Transfer-Encoding: chunked\r\n\r\n{'f' * 5000}\r\n\r\n",
    "a chunk that is longer than it says": "Transfer-Encoding: chunked\r\n\r\n1\r\nabcdef0\r\n\r\n",
}


def _smuggled() -> Iterator[Attack]:
    for name, rest in _TWO_LENGTHS.items():
        yield Attack("smuggled request", name, lambda target, rest=rest: _smuggle(target, rest), frozenset({_BAD}))


def _smuggle(target: Target, rest: str) -> list[Answer]:
    """Our own request with a second behind it: that one has no key, so its 401 shows that it was taken for one."""
    start = f"{_POST}Authorization: Bearer {target.keys['attacker']}\r\nContent-Type: application/json\r\n{rest}"
    return target.send(start.encode("latin-1") + _SECOND)


def _no_http() -> Iterator[Attack]:
    for name, data in _NO_HTTP.items():
        yield sending("no HTTP", name, {_BAD}, lambda target, data=data: data)
    for name, value in _SECRETS.items():
        yield sending(
            "no key",
            f"a secret of {name}",
            {_UNAUTHORIZED, ALSO_SLOWED},
            lambda target, value=value: head("GET", "/v1/models", value),
        )


def attacks() -> Iterator[Attack]:
    """All of them."""
    yield from _slow()
    yield from _no_http()
    yield from _smuggled()
