"""Multipart forms that are none, too much, or lie about names."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

from tests.drills.attacks.attack import Attack, Outcome, Target, sending
from tests.drills.attacks.wire import chunk, head, request

__all__ = ["attacks"]

_TYPE = "Content-Type: multipart/form-data; boundary=BB"
_END = b"--BB--\r\n"
_INVALID = ((400, "invalid-option"),)
_UNSAFE = ((422, "model-unsafe"),)
_UNKNOWN = ((415, "unknown-format"),)
_TOO_LARGE = ((413, "model-too-large"),)
_TYPES = (
    "multipart/form-data", "multipart/form-data; boundary=", "application/json", "multipart/mixed; boundary=BB",
    f"multipart/form-data; boundary={'B' * 5000}",
)  # fmt: skip
_PATHS = ("/v1/compile", "/v1/models")


def _part(name: str, content: bytes, filename: str | None = None, headers: str = "") -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    return (
        f'--BB\r\nContent-Disposition: form-data; name="{name}"{file}\r\n{headers}\r\n'.encode("latin-1")
        + content
        + b"\r\n"
    )


_NESTED = b"--IN\r\nContent-Disposition: form-data; name=model; filename=m\r\n\r\n" + b"x" * 64 + b"\r\n--IN--\r\n"
_FORMS: dict[str, tuple[bytes, tuple[Outcome, ...]]] = {
    "5000 parts": (b"".join(_part("data", b"", f"f{i}") for i in range(5000)) + _END, _INVALID),
    "500 models": (_part("model", b"x", "m") * 500 + _END, _INVALID),
    "cut in a part": (_part("model", b"x" * 1000, "m")[:-300], _INVALID),
    "no last boundary": (_part("model", b"x", "m"), _INVALID),
    "another boundary": (_part("model", b"x", "m").replace(b"BB", b"CC") + b"--CC--\r\n", _INVALID),
    "a header of 100 kB": (b"--BB\r\nX: " + b"y" * 100_000 + b"\r\n\r\nx\r\n" + _END, _INVALID),
    "5000 headers": (b"--BB\r\n" + b"X: y\r\n" * 5000 + b"\r\nx\r\n" + _END, _INVALID),
    "options of 1 MB": (_part("options", b"1" * (1 << 20)) + _END, _INVALID),
    "an unknown part": (_part("plugin", b"import os", "p.py") + _END, _INVALID),
    "a form in a part": (
        _part("model", _NESTED, "m", "Content-Type: multipart/mixed; boundary=IN\r\n") + _END,
        _UNKNOWN,
    ),
    "base64 that nobody decodes": (
        _part("model", b"CAo=", "m", "Content-Transfer-Encoding: base64\r\n") + _END,
        _UNKNOWN,
    ),
    "a gzip bomb for a body": (gzip.compress(bytes(20 << 20)), _INVALID),
}

_DATA_NAMES = (
    "../w.bin",
    "../../../../etc/cron.d/x",
    "/etc/passwd",
    "..",
    "a/b",
    "..\\\\..\\\\w",
    "w\x01",
    "x" * 300,
    "",
)
_MODEL_NAMES = ("../../../root/.ssh/authorized_keys", "/etc/passwd", "..", "a\x00b", "%2e%2e%2fx", "-rf", "\xff\xfe")
_HEADER_NAMES = {
    "a line break in a file name": 'x"\r\nX-Injected: 1\r\nY: "',
    "an escaped line break in a file name": "x%0d%0aX-Injected: 1",
    "a quote in a file name": 'x\\"; X-Injected=1; y=\\"',
}


def _forms() -> Iterator[Attack]:
    for name, (body, refusals) in _FORMS.items():
        for path in _PATHS:
            yield _posting("malformed form", f"{name}, {path}", path, body, refusals)
    for kind in _TYPES:
        body = _part("model", b"x", "m") + _END
        yield sending(
            "malformed form",
            f"type {kind[:40]}",
            _INVALID,
            lambda target, kind=kind, body=body: request(
                "POST", "/v1/compile", target.keys["attacker"], f"Content-Type: {kind}", body=body
            ),
        )


def _names() -> Iterator[Attack]:
    for name in _DATA_NAMES:
        body = _part("model", b"x", "m") + _part("data", b"x", name) + _END
        yield _posting("path in a name", f"data {name[:20]!r}", "/v1/compile", body, _UNSAFE)
    for name in _MODEL_NAMES:
        yield _posting("path in a name", f"model {name!r}", "/v1/models", _part("model", b"x", name) + _END, _UNKNOWN)
    for what, name in _HEADER_NAMES.items():
        refusals = (*_UNKNOWN, *_INVALID)
        yield _posting("header in a name", what, "/v1/compile", _part("model", b"x", name) + _END, refusals)


def _oversized() -> Iterator[Attack]:
    for path in _PATHS:
        yield sending(
            "oversized",
            f"a terabyte announced, {path}",
            _TOO_LARGE,
            lambda target, path=path: head(
                "POST", path, target.keys["attacker"], _TYPE, f"Content-Length: {1 << 40}"
            ) + _part("model", b"x" * 5000, "m"),
        )  # fmt: skip
        for name, begin in (
            ("a file", _part("model", b"", "m")[:-2]),
            ("an epilogue", _part("model", b"x", "m") + _END),
        ):
            yield sending(
                "oversized",
                f"{name} without end, {path}",
                _TOO_LARGE,
                lambda target, path=path, begin=begin: _endless(target, path, begin),
            )


def _endless(target: Target, path: str, begin: bytes) -> Iterator[bytes]:
    yield head("POST", path, target.keys["attacker"], _TYPE, "Transfer-Encoding: chunked")
    yield chunk(begin)
    while True:
        yield chunk(bytes(1 << 18))


def _posting(kind: str, name: str, path: str, body: bytes, refusals: tuple[Outcome, ...]) -> Attack:
    return sending(
        kind, name, refusals, lambda target: request("POST", path, target.keys["attacker"], _TYPE, body=body)
    )


def attacks() -> Iterator[Attack]:
    """All of them."""
    yield from _forms()
    yield from _names()
    yield from _oversized()
