"""A job's log and a tuning's report over HTTP: in ranges, of a job that ends meanwhile, of one that swaps its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from relaxc.service.api.app import create_app
from relaxc.service.api.auth import Anonymous
from relaxc.service.api.routes.job_files import logs
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.rows import LOCAL_OWNER, JobKind, JobRequest
from relaxc.service.jobs.job import State
from tests.api.conftest import BY_SEED, RunningServer
from tests.api.jobs import ended, submit, uploaded
from tests.api.test_compile import problem_of
from tests.jobs.conftest import ENTRIES, LIMITS
from tests.jobs.queue.test_desk import asks, end_of, upload
from tests.jobs.queue.test_desk import until as until_state
from tests.waiting import until as wait_until


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Of the API over a backend in this process, whose children do what the entries of tests say."""
    cache = tmp_path_factory.mktemp("cache")
    app = create_app(partial(Backend, cache, limits=LIMITS, entry=BY_SEED, entries=ENTRIES), anonymous=Anonymous.ALWAYS)
    with TestClient(app, base_url="http://localhost") as opened:
        yield opened


@pytest.fixture
def backend(client: TestClient) -> Backend:
    """That backend."""
    opened: Backend = client.app.state.backend  # type: ignore[attr-defined]  # an application that has a state
    return opened


@pytest.fixture(scope="module")
def report(client: TestClient) -> str:
    """The address of a tuning's report."""
    backend: Backend = client.app.state.backend  # type: ignore[attr-defined]
    request = JobRequest(JobKind.TUNE, model=upload(backend, LOCAL_OWNER), target="x86-64-v3", time_s=0.1)
    job = end_of(backend, LOCAL_OWNER, backend.jobs.submit(LOCAL_OWNER, request).job.id)
    assert job.state is State.SUCCEEDED, job.error
    return f"/v1/jobs/{job.id}/report"


@pytest.mark.slow
@pytest.mark.parametrize("below", ["", "/curve.svg"])
def test_a_report_is_sent_in_ranges_as_an_artifact_is(client: TestClient, report: str, below: str) -> None:
    whole = client.get(report + below)
    assert (whole.status_code, whole.headers["x-content-type-options"]) == (200, "nosniff")
    tail = client.get(report + below, headers={"Range": "bytes=2-"})
    assert (tail.status_code, tail.content) == (206, whole.content[2:])
    outside = client.get(report + below, headers={"Range": "bytes=999999999-"})
    assert (outside.status_code, problem_of(outside)["code"]) == (416, "range-not-satisfiable")
    assert outside.headers["content-range"] == f"bytes */{len(whole.content)}"
    for nonsense in ("bytes=", "bytes=x", "bytes=b-a", "lines=0-1", "bytes=2-1"):  # RFC 9110, 14.2: ignored
        answer = client.get(report + below, headers={"Range": nonsense})
        assert (answer.status_code, answer.content) == (200, whole.content)


@pytest.mark.parametrize("path", ["/v1/jobs/{id}/report", "/v1/jobs/{id}/report/curve.svg"])
def test_the_answers_to_a_range_are_documented(client: TestClient, path: str) -> None:
    answers = client.get("/openapi.json").json()["paths"][path]["get"]["responses"]
    assert {"200", "206", "404", "416"} <= answers.keys()


def test_a_log_arrives_although_its_job_ends_before_it_is_sent(client: TestClient, backend: Backend) -> None:
    job = backend.jobs.submit(LOCAL_OWNER, asks(backend, "sleep", LOCAL_OWNER)).job
    until_state(State.RUNNING, backend, job.id, "build")
    path = f"/v1/jobs/{job.id}/logs"
    wait_until(lambda: "sleeping" in client.get(path).text)
    answer = logs(job.id, Request({"type": "http", "app": client.app}), LOCAL_OWNER)
    backend.jobs.cancel(LOCAL_OWNER, job.id)
    end_of(backend, LOCAL_OWNER, job.id)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(answer({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send))
    assert sent[0]["status"] == 200
    assert b"sleeping" in b"".join(message.get("body", b"") for message in sent)
    assert client.get(path).text.startswith("sleeping")


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["link_log", "pipe_log"])
def test_a_job_that_swaps_its_log_shows_nothing_of_the_server(
    start: Callable[..., RunningServer], onnx_model: bytes, entry: str
) -> None:
    server = start(sandbox="off", webhook_secret="hunter2")
    id = submit(server, uploaded(server, onnx_model), entry, shapes={"sleep_s": 8}).json()["id"]
    wait_until(lambda: server.client.get(f"/v1/jobs/{id}").json()["stage"] == "build")
    live = server.client.get(f"/v1/jobs/{id}/logs")
    assert (live.status_code, live.text) == (200, "")
    job = ended(server, id)
    assert (job["error"]["code"], job["error"]["fields"]["log_tail"]) == ("compiler-crashed", [])
    assert server.client.get(f"/v1/jobs/{id}/logs").text == ""
