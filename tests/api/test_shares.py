"""What the calls of one owner may hold open, and that its streams end with its key."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import httpx

from relaxc.service.api.shares import OpenCalls
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.objects.keys import Keys
from tests.api.conftest import RunningServer, make_onnx
from tests.api.jobs import options_of
from tests.waiting import PATIENCE_S, until


def _client(server: RunningServer, secret: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers={"Authorization": f"Bearer {secret}"})


def _sleeping(client: httpx.Client, seed: int) -> str:
    """The path of the events of a job that goes on."""
    digest = client.post("/v1/models", files={"model": ("m.onnx", make_onnx(4, seed=seed))}).json()["digest"]
    job = client.post("/v1/jobs", json={"kind": "compile", "model": digest, "options": options_of("sleep")})
    return f"/v1/jobs/{job.json()['id']}/events"


def test_an_owner_has_a_quarter_of_the_connections_and_its_streams_end_with_its_key(
    start: Callable[..., RunningServer],
) -> None:
    server = start(max_connections=16)
    with closing(Database(f"sqlite:///{server.cache / 'service.sqlite3'}")) as database, ExitStack() as held:
        keys = Keys(database)
        first, second = (keys.create(name, ["read", "compile"]) for name in ("first", "second"))
        mine, other = (held.enter_context(_client(server, key.secret)) for key in (first, second))
        path = _sleeping(mine, 70)
        streams = [held.enter_context(mine.stream("GET", path)) for _ in range(4)]
        assert [stream.status_code for stream in streams] == [200] * 4
        refused = mine.get("/v1/models")
        assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
        assert other.get("/v1/models").status_code == 200
        streams[0].close()
        until(lambda: mine.get("/v1/models").status_code == 200)
        keys.revoke(first.row.id)
        begun = time.monotonic()
        assert not any(line.startswith("event: done") for stream in streams[1:] for line in stream.iter_lines())
        assert time.monotonic() - begun < PATIENCE_S


def test_a_call_that_has_ended_counts_no_more() -> None:
    calls = OpenCalls()
    for _ in range(1000):
        calls.take("owner")
        calls.release("owner")
