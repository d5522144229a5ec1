"""JSON that is too deep, too large or no JSON; parameters, cursors and event numbers that nobody gave out; webhooks."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from urllib.parse import quote

from tests.drills.attacks.attack import Attack, Outcome, Target, sending
from tests.drills.attacks.wire import Answer, chunk, head, request

__all__ = ["attacks"]

_JSON = "Content-Type: application/json"
_BAD = (400, "bad-request")
_OPTION = (400, "invalid-option")
_SHAPE = (400, "invalid-shape")
_TARGET = (400, "invalid-target")
_INVALID = (422, "invalid-request")
_TOO_LARGE = (413, "content-too-large")
_DEEP = 10_000


def _job(field: str, value: str) -> bytes:
    return f'{{"kind": "compile", "model": "MODEL", "{field}": {value}}}'.encode()


_BODIES: dict[str, tuple[bytes, tuple[Outcome, ...]]] = {
    "nothing": (b"", (_INVALID,)),
    "cut": (b'{"kind": "com', (_INVALID,)),
    "lists 10 000 deep": (b"[" * _DEEP + b"]" * _DEEP, (_BAD, _INVALID)),
    "objects 10 000 deep": (b'{"a":' * _DEEP + b"1" + b"}" * _DEEP, (_BAD, _INVALID)),
    "options 10 000 deep": (_job("options", "[" * _DEEP + "]" * _DEEP), (_BAD, _INVALID)),
    "options 900 deep": (_job("options", '{"a":' * 900 + "1" + "}" * 900), (_BAD, _INVALID, _OPTION)),
    "a target 900 deep": (_job("target", '{"a":' * 900 + "1" + "}" * 900), (_BAD, _INVALID, _OPTION, _TARGET)),
    "NaN": (_job("time_s", "NaN"), (_INVALID,)),
    "NaN in the options": (_job("options", '{"seed": NaN}'), (_OPTION, _INVALID)),
    "Infinity in the target": (_job("target", '{"kind": "llvm", "num-cores": Infinity}'), (_TARGET, _OPTION, _INVALID)),
    "an integer of 5000 digits": (_job("priority", "9" * 5000), (_BAD, _INVALID)),
    "an integer of 400 digits": (_job("priority", "9" * 400), (_INVALID,)),
    "a seed of 400 digits": (_job("options", '{"seed": ' + "9" * 400 + "}"), (_OPTION, _INVALID)),
    "a shape of 400 digits": (_job("options", '{"shapes": {"x": [' + "9" * 400 + "]}}"), (_SHAPE, _OPTION, _INVALID)),
    "1e999": (_job("time_s", "1e999"), (_INVALID,)),
    "half of a surrogate pair": (_job("name", '"\\ud800"'), (_INVALID, _OPTION)),
    "half of one in the options": (_job("options", '{"precision": "\\ud800"}'), (_OPTION, _INVALID)),
    "NUL": (_job("name", '"a\\u0000b"'), (_INVALID, _OPTION)),
    "NUL in the options": (_job("options", '{"shapes": {"a\\u0000b": [1]}}'), (_OPTION, _SHAPE, _INVALID)),
    "bytes that are no UTF-8": (b'{"kind": "\xff\xfe\xfa"}', (_BAD, _INVALID)),
    "UTF-16": ('{"kind": "compile"}'.encode("utf-16"), (_OPTION,)),
    "an unknown field": (_job("plugins", '["/etc/passwd"]'), (_INVALID,)),
    "plugins in the options": (_job("options", '{"plugins": ["/etc/passwd"]}'), (_OPTION,)),
    "records that are a file": (_job("options", '{"records": ["/etc/passwd"]}'), (_OPTION,)),
    "a list": (b"[]", (_INVALID,)),
    "60 000 keys": (json.dumps({f"k{i}": 1 for i in range(60_000)}).encode(), (_TOO_LARGE,)),
    "5 000 keys": (json.dumps({f"k{i}": 1 for i in range(5_000)}).encode(), (_INVALID,)),
    "lists too deep and too large": (b"[" * 100_000 + b"]" * 100_000, (_TOO_LARGE,)),
}

_WEBHOOKS = (
    "http://127.0.0.1:80/", "http://localhost/", "http://[::1]/", "http://0.0.0.0/", "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/", "http://10.0.0.1/", "http://192.168.0.1/", "http://[::ffff:127.0.0.1]/", "http://2130706433/",
    "http://0x7f.1/", "http://0177.0.0.1/", "file:///etc/passwd", "gopher://127.0.0.1:6379/_x", "http://user:pw@example.com/",
    "http://[::1", "http://example.com:99999/", "http://127.0.0.1%00.example.com/", "//example.com/", "http://",
    "http://example.com/\r\nX-Injected: 1",
)  # fmt: skip

_QUERIES = (
    "limit=-1", "limit=0", "limit=501", f"limit={'9' * 400}", f"limit={'9' * 5000}", "limit=1e3", "limit=NaN",
    "limit=%00", "limit=",
    "state=%ff%fe", "state=' OR 1=1--", "kind=rm", "model=%ed%a0%80", "model=../../etc/passwd", "lmit=1", "%ff=%ff",
    f"cursor={'A' * 500}", "cursor=%0a", "cursor=", "cursor=%ff",
)  # fmt: skip
_CURSORS = ("0", "-1", "j_" + "0" * 22, "A" * 200, "'/**/OR/**/1=1--", "AAAA====", "9" * 200, "nan.nan", "é")
_ENCODED = ('["a",1]', "{}", "1:2", "[[[[", "[NaN]", f"{'9' * 140}:1")
_EVENT_IDS = ("-1", "NaN", "9" * 400, "9" * 5000, "1e9", "0x10", "' OR 1=1--", str(2**31), "1;2", "\xb2")


def _json() -> Iterator[Attack]:
    for name, (body, refusals) in _BODIES.items():
        yield _posting("malformed JSON", name, body, refusals)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
        yield sending(
            "malformed JSON",
            f"as {kind or 'nothing'}",
            {(415, "unsupported-media-type")},
            lambda target, kind=kind: request(
                "POST", "/v1/jobs", target.keys["attacker"], f"Content-Type: {kind}", body=b'{"kind": "compile"}'
            ),
        )
    for url in _WEBHOOKS:
        yield _posting("webhook inwards", url, _job("webhook", json.dumps(url)), (_OPTION,))


def _getting(kind: str, name: str, path: str, *refusals: Outcome) -> Attack:
    return Attack(kind, name[:30], lambda target: [target.ask("GET", path)], frozenset(refusals))


def _parameters() -> Iterator[Attack]:
    for query in _QUERIES:
        yield _getting("parameter", query, "/v1/jobs?" + query.replace(" ", "%20"), _INVALID)
    encoded = [base64.urlsafe_b64encode(text.encode()).decode() for text in (*_CURSORS, *_ENCODED)]
    for cursor in (*_CURSORS, *encoded, *(text.rstrip("=") for text in encoded)):
        yield _getting("forged cursor", cursor, f"/v1/jobs?cursor={quote(cursor, safe='')}", _OPTION, _INVALID)
    for number in _EVENT_IDS:
        yield Attack(
            "Last-Event-ID",
            number[:20],
            lambda target, number=number: [_events(target, number)],
            frozenset({_INVALID}),
        )


def _events(target: Target, number: str) -> Answer:
    return target.ask("GET", f"/v1/jobs/{target.theirs['job']}/events", f"Last-Event-ID: {number}", key="good")


def _oversized() -> Iterator[Attack]:
    kind = "oversized"
    for path, key in (("/v1/jobs", "attacker"), ("/v1/keys", "admin"), ("/v1/records", "admin")):
        yield sending(
            kind,
            f"a gigabyte announced, {path}",
            {_TOO_LARGE},
            lambda target, path=path, key=key: head(
                "POST", path, target.keys[key], _JSON, f"Content-Length: {1 << 30}"
            ) + b"[" * 5000,
        )  # fmt: skip
        yield sending(
            kind, f"without end, {path}", {_TOO_LARGE}, lambda target, path=path, key=key: _endless(target, path, key)
        )


def _endless(target: Target, path: str, key: str) -> Iterator[bytes]:
    yield head("POST", path, target.keys[key], _JSON, "Transfer-Encoding: chunked")
    while True:
        yield chunk(b"[" * (1 << 16))


def _posting(kind: str, name: str, body: bytes, refusals: tuple[Outcome, ...]) -> Attack:
    """Of a model that the attacker has, so that only what is wrong can be refused."""

    def data(target: Target) -> bytes:
        whole = body.replace(b"MODEL", target.theirs["own model"].encode())
        return request("POST", "/v1/jobs", target.keys["attacker"], _JSON, body=whole)

    return sending(kind, name, refusals, data)


def attacks() -> Iterator[Attack]:
    """All of them."""
    yield from _json()
    yield from _parameters()
    yield from _oversized()
