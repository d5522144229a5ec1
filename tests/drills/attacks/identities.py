"""Keys that may not, may no more or never might; ids of what another key has."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator

from tests.drills.attacks.attack import ALSO_SLOWED, Attack, Target
from tests.drills.attacks.wire import CLOSED, Answer, request

__all__ = ["CALLS", "attacks"]

_SHA = "a" * 64
_JOB = "j_" + "a" * 22
_ROTATE, _AN_OWNER = "/v1/keys/k_aaaaaaaaaaaa/rotate", "/v1/owners/o_aaaaaaaaaaaa"

CALLS = {
    "read": (
        ("GET", "/v1/models"), ("GET", f"/v1/models/{_SHA}"), ("GET", "/v1/jobs"), ("GET", f"/v1/jobs/{_JOB}"),
        ("GET", f"/v1/jobs/{_JOB}/events"), ("GET", f"/v1/jobs/{_JOB}/logs"), ("GET", f"/v1/jobs/{_JOB}/report"),
        ("GET", f"/v1/jobs/{_JOB}/report/curve.svg"), ("GET", f"/v1/artifacts/{_SHA}"),
        ("GET", f"/v1/artifacts/{_SHA}/weights"), ("GET", "/v1/artifacts"),
        ("GET", f"/v1/artifacts/{_SHA}/manifest"), ("GET", f"/v1/artifacts/{_SHA}/report"), ("GET", "/v1/records"),
        ("GET", f"/v1/records/{_SHA}"), ("GET", "/v1/targets"), ("GET", "/metrics"),
    ),
    "compile": (
        ("POST", "/v1/compile"), ("POST", "/v1/models"), ("DELETE", f"/v1/models/{_SHA}"),
        ("PUT", f"/v1/uploads/{_SHA}"), ("GET", "/v1/uploads"), ("DELETE", f"/v1/uploads/{_SHA}"),
        ("HEAD", f"/v1/uploads/{_SHA}"), ("POST", "/v1/jobs"), ("DELETE", f"/v1/jobs/{_JOB}"),
        ("DELETE", f"/v1/artifacts/{_SHA}"),
    ),
    "tune": (("POST", "/v1/records"), ("DELETE", f"/v1/records/{_SHA}")),
    "admin": (
        ("GET", "/v1/keys"), ("POST", "/v1/keys"), ("DELETE", "/v1/keys/k_aaaaaaaaaaaa"), ("POST", _ROTATE),
        ("GET", "/v1/owners"), ("POST", "/v1/owners"), ("GET", _AN_OWNER), ("PATCH", _AN_OWNER),
        ("DELETE", f"{_AN_OWNER}/keys"), ("GET", "/v1/audit"), ("GET", "/v1/audit/export"),
    ),
}  # fmt: skip
"""Scope → the calls that need it: docs/api.md, "Every call"."""

_JSON = {
    "/v1/jobs": b'{"kind": "compile"}',
    "/v1/keys": b'{"name": "mine", "scopes": ["admin"]}',
    "/v1/owners": b'{"name": "me"}',
    _ROTATE: b"{}",
    _AN_OWNER: b'{"quotas": {"bytes": "unlimited"}}',
}
_REFUSED = frozenset({(401, "unauthorized"), ALSO_SLOWED, (401, ""), (429, "")})
_FORBIDDEN = frozenset({(403, "forbidden"), (403, "")})  # HEAD has no body to say a code in


def _call(target: Target, method: str, path: str, key: str | None) -> list[Answer]:
    body = _JSON.get(path, b"x") if method in ("POST", "PUT", "PATCH") else None
    kind = "application/json" if path in _JSON else "multipart/form-data; boundary=BB"
    secret = None if key is None else target.keys.get(key, key)
    return target.send(request(method, path, secret, f"Content-Type: {kind}", body=body), method)


def _keys() -> Iterator[Attack]:
    for needed, calls in CALLS.items():
        for method, path in calls:
            wrong = "writer" if needed == "read" else "reader"
            for kind, key, refusals in (
                ("wrong scope", wrong, _FORBIDDEN),
                ("expired key", "expired", _REFUSED),
                ("revoked key", "revoked", _REFUSED),
                ("unknown key", "rk_" + "0" * 43, _REFUSED),
                ("no key", None, _REFUSED),
            ):
                yield Attack(
                    kind,
                    f"{method} {path}",
                    lambda target, method=method, path=path, key=key: _call(target, method, path, key),
                    refusals,
                )


_GUESSES = {
    "job": (
        "GET /v1/jobs/{}", "GET /v1/jobs/{}/events", "GET /v1/jobs/{}/logs", "GET /v1/jobs/{}/report",
        "DELETE /v1/jobs/{}",
    ),
    "model": ("GET /v1/models/{}", "DELETE /v1/models/{}", "JOB model"),
    "artifact": (
        "GET /v1/artifacts/{}", "GET /v1/artifacts/{}/weights", "GET /v1/artifacts/{}/manifest",
        "GET /v1/artifacts/{}/report",
        "DELETE /v1/artifacts/{}", "JOB artifact",
    ),
    "upload": ("HEAD /v1/uploads/{}", "PART /v1/uploads/{}", "DELETE /v1/uploads/{}"),
}  # fmt: skip
_NOT_THERE = {
    "job": {(404, "job-not-found")},
    "model": {(404, "model-not-found")},
    "artifact": {(404, "artifact-not-found")},
    "upload": {(200, ""), (409, "upload-conflict"), (204, "")},
}


def _guessed() -> Iterator[Attack]:
    for what, calls in _GUESSES.items():
        for call in calls:
            yield Attack(
                "guessed id",
                call.format("…"),
                lambda target, what=what, call=call: _compared(target, what, call),
                frozenset(_NOT_THERE[what]),
            )


def _compared(target: Target, what: str, call: str) -> list[Answer]:
    """What another key's id gives; CLOSED where an id that nobody has gives anything else."""
    real = target.theirs[what]
    never = "j_" + secrets.token_hex(11) if what == "job" else secrets.token_hex(32)
    theirs, nobodys = (_with_id(target, call, id) for id in (real, never))
    return [theirs] if _told(theirs, real) == _told(nobodys, never) else [CLOSED]


def _with_id(target: Target, call: str, id: str) -> Answer:
    method, path = call.split(" ")
    if method == "JOB":
        wanted = {"kind": "bench" if path == "artifact" else "compile", path: id}
        return target.ask("POST", "/v1/jobs", "Content-Type: application/json", body=json.dumps(wanted).encode())
    if method == "PART":
        return target.ask("PUT", path.format(id), "Content-Range: bytes 500-999/1000", body=b"y" * 500)
    return target.ask(method, path.format(id))


def _told(answer: Answer, id: str) -> tuple[object, ...]:
    headers = {name: value for name, value in answer.headers if name not in ("date", "x-request-id")}
    return answer.status, headers, re.sub(re.escape(id.encode()), b"ID", answer.body)


def attacks() -> Iterator[Attack]:
    """All of them."""
    yield from _keys()
    yield from _guessed()
