"""JSON bodies of absurd size: refused with a small answer, and without memory of the server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from relaxc.service.api.bodies import JSON_MAX_BYTES
from tests.api.conftest import RunningServer
from tests.api.test_compile import problem_of
from tests.drills.hostile_server import Memory

_JSON = {"Content-Type": "application/json"}
_MOST_BYTES = 48 << 20
"""What the server's own process may take on top: eight bodies at a time, and what any request takes."""


def _keys(size: int) -> bytes:
    """A JSON object of about `size` bytes, of nothing but keys that no call has."""
    return json.dumps({f"{i:x}": 1 for i in range(size // 9)}, separators=(",", ":")).encode()


@pytest.fixture(scope="module")
def warm(server: RunningServer) -> Iterator[RunningServer]:
    """A server that has once done all that these tests ask of it."""
    for path in ("/v1/jobs", "/v1/keys"):
        assert server.client.post(path, content=b'{"x": 1}', headers=_JSON).status_code == 422
    yield server


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/keys"])
@pytest.mark.parametrize(
    ("content", "code"),
    [
        (_keys(700_000), "content-too-large"),
        (_keys(JSON_MAX_BYTES - 100), "invalid-request"),
        (b'{"scopes": [' + b"1," * 32_000 + b"1]}", "invalid-request"),
    ],
    ids=["0.7 MB of keys", "as many keys as the limit takes", "as long a list"],
)
def test_an_absurd_body_costs_neither_memory_nor_a_long_answer(
    warm: RunningServer, path: str, content: bytes, code: str
) -> None:
    def post(_: int) -> Any:
        return warm.client.post(path, content=content, headers=_JSON)

    with closing(Memory(warm.process.pid)) as memory, ThreadPoolExecutor(8) as threads:
        for answer in threads.map(post, range(64)):
            assert problem_of(answer)["code"] == code
            assert len(answer.content) < 8 << 10
    assert memory.peak - memory.before < _MOST_BYTES


def test_a_refusal_names_twenty_errors_and_counts_the_rest(server: RunningServer) -> None:
    answer = server.client.post("/v1/jobs", json={f"key{i}": 1 for i in range(50)})
    fields: dict[str, Any] = problem_of(answer)["fields"]
    assert len(fields["errors"]) == 20
    assert fields["more"] == 30
    refused = server.client.get("/v1/jobs", params={f"p{i}": "1" for i in range(300)})
    assert len(problem_of(refused)["fields"]["errors"]) == 20
    long = server.client.post("/v1/jobs", json={"k" * 60_000: 1})
    assert len(long.content) < 2000
