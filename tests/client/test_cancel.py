"""Cancelling over a wire that loses answers, and giving up in the middle of a submission."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from relaxc.service.client import AsyncClient, Client
from relaxc.service.client.flow import Call
from relaxc.service.errors import InvalidTarget, JobEnded
from tests.api.conftest import BY_SEED, RunningServer, make_onnx
from tests.client.conftest import Ask
from tests.client.test_jobs import options
from tests.client.wire import Cut, Wire
from tests.waiting import PATIENCE_S


@pytest.mark.slow
def test_a_cancel_whose_answer_is_lost_has_cancelled(
    server: RunningServer, wire: Wire, client: Client, ask: Ask, model: Path
) -> None:
    job = client.submit("compile", model=client.upload(model).digest, options=options("sleep").to_dict())
    wire.cuts.append(Cut(down=1))  # the server does it, and nobody hears
    assert ask(wire.url, "cancel", job.id).id == job.id
    assert client.wait(job.id, timeout_s=PATIENCE_S).state == "cancelled"
    assert wire.connections == 2


@pytest.mark.sampled("async")
def test_so_it_has_with_a_queued_job_which_ends_at_once(tmp_path: Path, ask: Ask) -> None:
    server = RunningServer(tmp_path / "cache", BY_SEED, workers=1)
    try:
        with Client(server.url) as client, Wire(server.url) as wire:
            jobs = []
            for seed in (1, 2):
                (tmp_path / f"{seed}.onnx").write_bytes(make_onnx(4, seed=seed))
                digest = client.upload(tmp_path / f"{seed}.onnx").digest
                jobs.append(client.submit("compile", model=digest, options=options("sleep").to_dict()))
            wire.cuts.append(Cut(down=1))
            assert ask(wire.url, "cancel", jobs[1].id).state == "cancelled"
            client.cancel(jobs[0].id)
            with pytest.raises(JobEnded):
                client.cancel(jobs[1].id)
    finally:
        server.stop()


def _interrupt_after_post(client: Any, interrupt: BaseException, *, arrives: bool) -> None:
    """What Ctrl-C in the middle of POST /v1/jobs does to this client: with, or without, the server having heard."""
    sent, posts = client._send, []

    def is_first(call: Call) -> bool:
        posts.extend([call] if (call.method, call.path) == ("POST", "/v1/jobs") else [])
        return len(posts) == 1 and posts[0] is call

    def sync(call: Call) -> httpx.Response:
        if is_first(call):
            if arrives:
                sent(call)
            raise interrupt
        return sent(call)

    async def asynchronous(call: Call) -> httpx.Response:
        if is_first(call):
            if arrives:
                await sent(call)
            raise interrupt
        return await sent(call)

    client._send = asynchronous if isinstance(client, AsyncClient) else sync


@pytest.mark.parametrize("arrives", [True, False])
def test_ctrl_c_while_the_job_is_sent_leaves_none(
    server: RunningServer, client: Client, model: Path, tmp_path: Path, arrives: bool
) -> None:
    with Client(server.url) as mine:
        _interrupt_after_post(mine, KeyboardInterrupt(), arrives=arrives)
        with pytest.raises(KeyboardInterrupt):
            mine.compile(model, tmp_path / "m.so", options=options("sleep"))
    _all_cancelled(client, model, arrives)


@pytest.mark.parametrize("arrives", [True, False])
def test_so_does_a_cancelled_task(
    server: RunningServer, client: Client, model: Path, tmp_path: Path, arrives: bool
) -> None:
    async def cancelled() -> None:
        async with AsyncClient(server.url) as mine:
            _interrupt_after_post(mine, asyncio.CancelledError(), arrives=arrives)
            await mine.compile(model, tmp_path / "m.so", options=options("sleep"))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    _all_cancelled(client, model, arrives)


def _all_cancelled(client: Client, model: Path, arrives: bool) -> None:
    jobs = client.jobs(model=client.upload(model).digest).jobs
    assert len(jobs) == 1 or (not jobs and not arrives)
    assert [client.wait(job.id, timeout_s=PATIENCE_S).state for job in jobs] == ["cancelled"] * len(jobs)


def test_a_refused_submission_is_not_sent_again(server: RunningServer, client: Client, model: Path) -> None:
    with pytest.raises(InvalidTarget):
        client.compile(model, model.with_suffix(".so"), target="pdp11")
    assert client.jobs(model=client.upload(model).digest).jobs == ()
