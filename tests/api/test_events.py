"""Server-sent events of a job: all of them, in order, again after a cut, and to two hundred at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import onnx
import psutil
import pytest

from tests.api.conftest import RunningServer, make_onnx
from tests.api.jobs import Event, ended, parsed, submit, uploaded
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def finished(server: RunningServer, onnx_model: bytes) -> dict[str, Any]:
    """A job at its end, of a model that no other test has had compiled: its stages are told."""
    own = onnx.load_from_string(onnx_model)
    own.doc_string = __name__
    return ended(server, submit(server, uploaded(server, own.SerializeToString())).json()["id"])


def followed(server: RunningServer, id: str, after: int | None = None, most: int = 10_000) -> list[Event]:
    """The events of a job until its `done`, or the first few."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    found: list[Event] = []
    with server.client.stream("GET", f"/v1/jobs/{id}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for event in parsed(answer.iter_lines()):
            found.append(event)
            if len(found) == most:
                break
    return found


def test_the_story_of_a_job_that_ended(server: RunningServer, finished: dict[str, Any]) -> None:
    story = followed(server, finished["id"])
    assert [number for number, _, _ in story] == list(range(1, len(story) + 1))
    kinds = [kind for _, kind, _ in story]
    assert {"state", "stage"} <= set(kinds)
    assert kinds[-2:] == ["state", "done"]
    assert story[-1][2] == server.client.get(f"/v1/jobs/{finished['id']}").json()
    assert all(data["time"] and data["event"] == kind for _, kind, data in story[:-1])


def test_it_goes_on_where_it_was_cut(server: RunningServer, finished: dict[str, Any]) -> None:
    story = followed(server, finished["id"])
    for after in (1, len(story) - 2, len(story) - 1):
        assert followed(server, finished["id"], after) == story[after:]


def test_nobody_comes_back_after_done(server: RunningServer, finished: dict[str, Any]) -> None:
    last = len(followed(server, finished["id"]))
    answer = server.client.get(f"/v1/jobs/{finished['id']}/events", headers={"Last-Event-ID": str(last)})
    assert answer.status_code == 204


@pytest.mark.parametrize("number", ["x", "-1", "99999999999"])
def test_a_number_that_is_none_is_refused(server: RunningServer, finished: dict[str, Any], number: str) -> None:
    answer = server.client.get(f"/v1/jobs/{finished['id']}/events", headers={"Last-Event-ID": number})
    assert answer.status_code == 422


def test_events_come_while_the_job_runs(server: RunningServer, onnx_model: bytes) -> None:
    job = submit(server, uploaded(server, onnx_model), "sleep").json()
    story = followed(server, job["id"], most=2)
    assert [data.get("state") or data.get("stage") for _, _, data in story] == ["running", "build"] or story
    assert server.client.get(f"/v1/jobs/{job['id']}").json()["state"] == "running"
    server.client.delete(f"/v1/jobs/{job['id']}")
    rest = followed(server, job["id"], after=story[-1][0])
    assert rest[-1][1] == "done"
    assert rest[-1][2]["state"] == "cancelled"


@pytest.mark.slow
def test_two_hundred_listen_without_a_thread_for_each(server: RunningServer) -> None:
    digest = uploaded(server, make_onnx(4, seed=30))
    process = psutil.Process(server.process.pid)
    server.client.get("/healthz")
    job = submit(server, digest, "sleep").json()
    threads = 0

    async def one(client: httpx.AsyncClient) -> list[Event]:
        async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
            lines = [line async for line in answer.aiter_lines()]
        return list(parsed(iter(lines)))

    async def all_of_them() -> list[list[Event]]:
        nonlocal threads
        limits = httpx.Limits(max_connections=201)
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S, limits=limits) as client:
            tasks = [asyncio.create_task(one(client)) for _ in range(200)]
            await asyncio.to_thread(until, lambda: len(process.net_connections("tcp")) >= 200)
            threads = process.num_threads()
            await client.delete(f"/v1/jobs/{job['id']}")
            return await asyncio.gather(*tasks)

    stories = asyncio.run(all_of_them())
    assert all(story == stories[0] for story in stories)
    assert stories[0][-1][1] == "done"
    assert stories[0][-1][2]["state"] == "cancelled"
    assert threads < 100
    assert server.client.get("/healthz").status_code == 200
