"""Uploads by digest that lie: about the digest, the place, the length."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator

from tests.drills.attacks.attack import Attack, Target, sending
from tests.drills.attacks.wire import Answer, chunk, head
from tests.jobs.liars import claiming

__all__ = ["attacks"]

_MISMATCH = (422, "digest-mismatch")
_CONFLICT = (409, "upload-conflict")
_INVALID = (400, "invalid-option")
_NO_MODEL = (404, "model-not-found")
_TOO_LARGE = (413, "model-too-large")
_HUGE = 10**15 - 1
_RANGES = {
    "backwards": "bytes 5-3/100",
    "past its total": "bytes 0-100/100",
    "shorter than the body": "bytes 0-0/100",
    "longer than the body": "bytes 0-99/100",
    "of letters": "bytes a-b/c",
    "without a total": "bytes 0-9/*",
    "negative": "bytes -1-8/9",
    "of another unit": "octets 0-9/10",
    "several": "bytes 0-9/10, 0-9/10",
    "of 400 digits": f"bytes 0-9/{'9' * 400}",
    "empty": "",
}
_NAMES = ("../" * 20 + "etc/passwd", "A" * 64, "a" * 63, "a" * 65, "..", "%2e%2e%2f" + "a" * 55, "%00" * 20)


def _path(digest: str | None = None) -> str:
    return f"/v1/uploads/{digest or secrets.token_hex(32)}"


def _claims() -> dict[str, Callable[[Target], list[Answer]]]:
    """Code of an upload runs in the child that looks at it, and says that it is another key's model."""

    def asked(target: Target) -> list[Answer]:
        _claimed(target)
        return [target.ask("GET", f"/v1/models/{target.theirs['model']}")]

    def compiled(target: Target) -> list[Answer]:
        _claimed(target)
        body = json.dumps({"model": target.theirs["model"]}).encode()
        return [target.ask("POST", "/v1/jobs", "Content-Type: application/json", body=body)]

    def removed(target: Target) -> list[Answer]:
        _claimed(target)
        return [target.ask("DELETE", f"/v1/models/{target.theirs['model']}")]

    return {"asked for": asked, "compiled": compiled, "removed": removed}


def _claimed(target: Target) -> None:
    content = claiming(target.theirs["model"], secrets.token_hex(8))
    kept = target.ask("PUT", _path(hashlib.sha256(content).hexdigest()), body=content)
    if kept.status not in (200, 201):
        raise ValueError(f"the claim is not kept: {kept.outcome}")


def _forged() -> Iterator[Attack]:
    kind = "forged digest"

    def whole(target: Target) -> list[Answer]:
        return [target.ask("PUT", _path(), body=b"x" * 5000)]

    def of_another(target: Target) -> list[Answer]:
        return [target.ask("PUT", _path(target.theirs["model"]), body=b"x" * 5000)]

    def in_parts(target: Target) -> list[Answer]:
        path = _path()
        first = target.ask("PUT", path, "Content-Range: bytes 0-499/1000", body=b"x" * 500)
        if first.status != 202:
            return [first]
        return [target.ask("PUT", path, "Content-Range: bytes 500-999/1000", body=b"y" * 500)]

    for name, send in _claims().items():
        yield Attack("digest that a child claims", name, send, frozenset({_NO_MODEL}))
    for name, send in (("whole", whole), ("that another key has", of_another), ("in parts", in_parts)):
        yield Attack(kind, name, send, frozenset({_MISMATCH}))


def _misplaced() -> Iterator[Attack]:
    kind = "conflicting offset"

    def begun(target: Target) -> str:
        path = _path()
        target.ask("PUT", path, "Content-Range: bytes 0-499/1000", body=b"x" * 500)
        return path

    for name, range in (("again", "0-499/1000"), ("overlapping", "250-749/1000"), ("with a gap", "600-999/1000"),
                        ("of another total", "500-999/2000")):  # fmt: skip

        def send(target: Target, range: str = range) -> list[Answer]:
            first, last = map(int, range.partition("/")[0].split("-"))
            body = b"y" * (last - first + 1)
            return [target.ask("PUT", begun(target), f"Content-Range: bytes {range}", body=body)]

        yield Attack(kind, name, send, frozenset({_CONFLICT}))

    def from_nowhere(target: Target) -> list[Answer]:
        return [target.ask("PUT", _path(), "Content-Range: bytes 500-999/1000", body=b"y" * 500)]

    yield Attack(kind, "of an upload that is not there", from_nowhere, frozenset({_CONFLICT}))


def _ranges() -> Iterator[Attack]:
    for name, value in _RANGES.items():
        yield Attack(
            "Content-Range that lies",
            name,
            lambda target, value=value: [target.ask("PUT", _path(), f"Content-Range: {value}", body=b"x" * 10)],
            frozenset({_INVALID}),
        )
    for name in _NAMES:
        yield Attack(
            "name of an upload",
            name[:20],
            lambda target, name=name: [target.ask("PUT", f"/v1/uploads/{name}", body=b"x")],
            frozenset({_INVALID, (404, "not-found"), (405, "method-not-allowed")}),
        )


def _endless(target: Target, *headers: str) -> Iterator[bytes]:
    yield head("PUT", _path(), target.keys["attacker"], "Transfer-Encoding: chunked", *headers)
    while True:
        yield chunk(bytes(1 << 18))


def _without_end() -> Iterator[Attack]:
    kind = "upload without end"
    yield sending(kind, "that says no length", {_INVALID}, _endless)
    small, huge = "Content-Range: bytes 0-99/100", f"Content-Range: bytes 0-{_HUGE - 1}/{_HUGE}"
    yield sending(kind, "longer than its range", {_INVALID}, lambda target: _endless(target, small))
    yield sending(kind, "of a petabyte", {_TOO_LARGE}, lambda target: _endless(target, huge))
    yield sending(
        "oversized",
        "an upload of a terabyte announced",
        {_TOO_LARGE},
        lambda target: head("PUT", _path(), target.keys["attacker"], f"Content-Length: {1 << 40}") + b"x" * 5000,
    )


def attacks() -> Iterator[Attack]:
    """All of them."""
    yield from _forged()
    yield from _misplaced()
    yield from _ranges()
    yield from _without_end()
