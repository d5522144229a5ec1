"""The client for programs under asyncio."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import anyio
import httpx
from anyio import to_thread
from tenacity import AsyncRetrying

from relaxc.service.artifact.compiled import CompiledArtifact
from relaxc.service.client import calls
from relaxc.service.client.answers import check, translated
from relaxc.service.client.download import download
from relaxc.service.client.events import follow
from relaxc.service.client.flow import Action, Call, Emit, Flow, Read, Sleep, Steps, Work
from relaxc.service.client.job import Event, Job, JobPage, Model
from relaxc.service.client.transport import Connection, told
from relaxc.service.client.tune import Tuned, TuneWishes, tune
from relaxc.service.client.upload import upload

__all__ = ["AsyncClient"]

T = TypeVar("T")


class AsyncClient:
    """`Client` with coroutines: each call means the same, and cancelling the task is what Ctrl-C is there."""

    def __init__(self, url: str, key: str | None = None, **connection: Any) -> None:
        """As `Client`."""
        self.connection = Connection(url, key, **connection)
        self._http = httpx.AsyncClient(**self.connection.settings())

    async def compile(
        self,
        model: Path | str,
        output: Path | str,
        *,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **wishes: Unpack[calls.CompileWishes],
    ) -> CompiledArtifact:
        """Do as `Client.compile`; `on_event` is a plain function."""
        return await self._run(calls.compile(Path(model), Path(output), wishes), on_event)

    async def tune(
        self,
        model: Path | str,
        *,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **wishes: Unpack[TuneWishes],
    ) -> Tuned:
        """Do as `Client.tune`; `on_event` is a plain function."""
        return await self._run(tune(Path(model), wishes), on_event)

    async def upload(self, model: Path | str, data: Iterable[Path] | None = None) -> Model:
        """Do as `Client.upload`."""
        return await self._run(upload(Path(model), data))

    async def submit(self, kind: str, *, idempotency_key: str | None = None, **request: Any) -> Job:
        """Do as `Client.submit`."""
        return await self._run(calls.submit({"kind": kind, **request}, idempotency_key))

    async def job(self, id: str) -> Job:
        """Do as `Client.job`."""
        return await self._run(calls.job(id))

    async def jobs(self, **filters: str | None) -> JobPage:
        """Do as `Client.jobs`."""
        return await self._run(calls.jobs(**filters))

    def events(self, id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Do as `Client.events`."""
        return self._drive(Flow(follow(id, after=after)))

    async def wait(self, id: str, *, timeout_s: float | None = None) -> Job:
        """Do as `Client.wait`."""
        return await self._run(follow(id, deadline_s=None if timeout_s is None else time.monotonic() + timeout_s))

    async def cancel(self, id: str) -> Job:
        """Do as `Client.cancel`."""
        return await self._run(calls.cancel(id))

    async def logs(self, id: str) -> str:
        """Do as `Client.logs`."""
        return (await self._run(calls.text_of(f"/v1/jobs/{id}/logs"))).decode(errors="replace")

    async def fetch(self, job: Job, output: Path | str) -> CompiledArtifact:
        """Do as `Client.fetch`."""
        return await self._run(calls.fetch(job, Path(output)))

    async def download(self, digest: str, output: Path | str) -> Path:
        """Do as `Client.download`."""
        return await self._run(download(f"/v1/artifacts/{digest}", Path(output), digest))

    async def manifest(self, digest: str) -> dict[str, Any]:
        """Do as `Client.manifest`."""
        return await self._run(calls.json_of(f"/v1/artifacts/{digest}/manifest"))

    async def report(self, id: str) -> dict[str, Any]:
        """Do as `Client.report`."""
        return await self._run(calls.json_of(f"/v1/jobs/{id}/report"))

    async def workers(self) -> dict[str, Any]:
        """Do as `Client.workers`."""
        return dict(await self._run(calls.json_of("/v1/workers")))

    async def audit(self, **filters: str | None) -> dict[str, Any]:
        """Do as `Client.audit`."""
        return dict(await self._run(calls.json_of("/v1/audit", **filters)))

    async def targets(self) -> list[dict[str, Any]]:
        """Do as `Client.targets`."""
        return list((await self._run(calls.json_of("/v1/targets")))["targets"])

    async def quota(self) -> dict[str, Any]:
        """Do as `Client.quota`."""
        return dict(await self._run(calls.json_of("/v1/owner")))

    async def records(self, digest: str) -> str:
        """Do as `Client.records`."""
        return (await self._run(calls.text_of(f"/v1/records/{digest}"))).decode()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, steps: Steps[T], on_event: Callable[[dict[str, Any]], None] | None = None) -> T:
        flow = Flow(steps)
        async with aclosing(self._drive(flow)) as events:
            async for event in events:
                told(event, on_event)
        return flow.result

    async def _drive(self, flow: Flow[Any]) -> AsyncGenerator[Any, None]:
        """Performs what the flow wants, and yields what it emits; what is raised meanwhile, the flow gets to handle."""
        async with _Opened() as opened:
            action = flow.start()
            while action is not None:
                try:
                    reply = None
                    if isinstance(action, Emit):
                        yield action.value
                    else:
                        reply = await self._perform(action, opened)
                except BaseException as error:  # noqa: BLE001  # a cancelled task too: the flow cancels its job, and raises it again
                    action = flow.throw(error)
                else:
                    action = flow.send(reply)

    async def _perform(self, action: Action, opened: _Opened) -> Any:
        match action:
            case Call():
                response: httpx.Response = await AsyncRetrying(**self.connection.patience.policy())(self._send, action)
                return await opened.hold(response) if action.stream else response
            case Read():
                with translated(self.connection.url):
                    return await opened.read()
            case Sleep(seconds):
                await anyio.sleep(seconds)
                return None
            case Work(function):
                return await to_thread.run_sync(function)

    async def _send(self, call: Call) -> httpx.Response:
        with self.connection.request(self._http, call) as request, translated(self.connection.url):
            response = await self._http.send(request, stream=call.stream)
            if not response.is_success:
                await response.aread()
        return check(response)


class _Opened:
    """The answer that is being read, if any."""

    def __init__(self) -> None:
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def hold(self, response: httpx.Response) -> httpx.Response:
        """Hold a response, and close the one before."""
        await self.close()
        self._response, self._chunks = response, response.aiter_raw()
        return response

    async def read(self) -> bytes:
        assert self._chunks is not None
        return await anext(self._chunks, b"")

    async def close(self) -> None:
        if self._response is not None:
            await self._response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
