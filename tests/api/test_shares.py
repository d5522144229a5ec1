"""What the calls of one owner may hold open, and that its streams end with its key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import httpx
from starlette.datastructures import State
from starlette.types import Receive, Scope, Send

from relaxc.service.api.shares import EndCalls, Shares
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


async def _served(shares: Shares, log: list[str]) -> None:
    """Three calls of an owner and one of another; the first two answer when the other has been served."""
    served = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await shares.begin(State(scope["state"]), scope["owner"])
        log.append(scope["name"])
        if scope["owner"] == "first":
            await served.wait()
        await send({"type": "http.response.start", "status": 200})
        await asyncio.sleep(0)

    async def nothing(*_: object) -> Any:
        return {}

    async def call(owner: str, name: str) -> None:
        await EndCalls(app)({"type": "http", "owner": owner, "name": name}, nothing, nothing)
        if owner == "second":
            served.set()

    calls = [("first", "a"), ("first", "b"), ("first", "c"), ("second", "d")]
    await asyncio.gather(*(call(*each) for each in calls))


def test_a_third_call_of_an_owner_waits_and_those_of_others_do_not() -> None:
    shares, log = Shares(), []
    asyncio.run(_served(shares, log))
    assert log == ["a", "b", "d", "c"]
    assert not shares._shares
