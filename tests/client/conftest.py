"""A real server, a wire to it, and one way to call both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.client import AsyncClient, Client
from tests.api.conftest import BY_SEED, RunningServer, make_onnx
from tests.client.wire import Wire

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose compiles do what `tests.jobs.entries` says, by the seed of the options."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), BY_SEED)
    yield running
    running.stop()


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Wire]:
    """A wire to the server."""
    with Wire(server.url) as wire:
        yield wire


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    """A client of the server."""
    with Client(server.url) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """`ask(url, "job", id)` makes a call with either client."""

    def sync(url: str, call: str, *arguments: Any, **wishes: Any) -> Any:
        with Client(url, **wishes.pop("connection", {})) as client:
            found = getattr(client, call)(*arguments, **wishes)
            return list(found) if call == "events" else found

    async def asynchronous(url: str, call: str, *arguments: Any, **wishes: Any) -> Any:
        async with AsyncClient(url, **wishes.pop("connection", {})) as client:
            found = getattr(client, call)(*arguments, **wishes)
            return [event async for event in found] if call == "events" else await found

    if request.param == "sync":
        return sync
    return lambda *arguments, **wishes: asyncio.run(asynchronous(*arguments, **wishes))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of its own for each test."""
    path = tmp_path / "model.onnx"
    path.write_bytes(make_onnx(4, seed=hash(str(tmp_path)) % 2**32))
    return path
