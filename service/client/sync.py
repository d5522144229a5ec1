"""The client for programs that wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import httpx
from tenacity import Retrying

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

__all__ = ["Client"]

T = TypeVar("T")


class Client:
    """Calls of a relaxc server. Close it, or use it in a `with`.

    Every call raises the error classes of `relaxc.errors`, the same as a local call: what the server says, and
    ServerUnreachable where no server says anything. What fails for now is tried again (`Patience`).
    """

    def __init__(self, url: str, key: str | None = None, **connection: Any) -> None:
        """`key` is an API key's secret; `connection` has fields of `Connection`. Raise InvalidOption."""
        self.connection = Connection(url, key, **connection)
        self._http = httpx.Client(**self.connection.settings())

    def compile(
        self,
        model: Path | str,
        output: Path | str,
        *,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **wishes: Unpack[calls.CompileWishes],
    ) -> CompiledArtifact:
        """Have a model compiled, and download the artifact to `output`: what `relaxc.compile` does, elsewhere.

        `on_event` gets the events of docs/stages.md. Ctrl-C, and an exception of `on_event`, cancel the job.
        """
        return self._run(calls.compile(Path(model), Path(output), wishes), on_event)

    def tune(
        self,
        model: Path | str,
        *,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **wishes: Unpack[TuneWishes],
    ) -> Tuned:
        """Have the server search for better kernels; `on_event` gets the events of docs/tuning.md. Ctrl-C cancels
        it.
        """
        return self._run(tune(Path(model), wishes), on_event)

    def upload(self, model: Path | str, data: Iterable[Path] | None = None) -> Model:
        """Send what the server lacks of a model; `data` are files of external data, found by themselves if None."""
        return self._run(upload(Path(model), data))

    def submit(self, kind: str, *, idempotency_key: str | None = None, **request: Any) -> Job:
        """Return the job for a body of `POST /v1/jobs` (docs/api.md), queued or answered by an equal one."""
        return self._run(calls.submit({"kind": kind, **request}, idempotency_key))

    def job(self, id: str) -> Job:
        """Return the job as it is now."""
        return self._run(calls.job(id))

    def jobs(self, **filters: str | None) -> JobPage:
        """Return one page of jobs, the newest first; `filters` are state, kind, model, limit and the cursor of the
        page.
        """
        return self._run(calls.jobs(**filters))

    def events(self, id: str, *, after: int = 0) -> Iterator[Event]:
        """Return the job's events with a number over `after`, as they come, until the one of kind `done`."""
        return self._drive(Flow(follow(id, after=after)))

    def wait(self, id: str, *, timeout_s: float | None = None) -> Job:
        """Return the job when it is at its end, whatever that is. Raise CompilerTimeout; the job goes on then."""
        return self._run(follow(id, deadline_s=None if timeout_s is None else time.monotonic() + timeout_s))

    def cancel(self, id: str) -> Job:
        """End it. Raise JobEnded where it has ended."""
        return self._run(calls.cancel(id))

    def logs(self, id: str) -> str:
        """Return what the job's process printed so far."""
        return self._run(calls.text_of(f"/v1/jobs/{id}/logs")).decode(errors="replace")

    def fetch(self, job: Job, output: Path | str) -> CompiledArtifact:
        """Download what a job made."""
        return self._run(calls.fetch(job, Path(output)))

    def download(self, digest: str, output: Path | str) -> Path:
        """Download one library by its digest."""
        return self._run(download(f"/v1/artifacts/{digest}", Path(output), digest))

    def manifest(self, digest: str) -> dict[str, Any]:
        """Return what the artifact says of itself."""
        return self._run(calls.json_of(f"/v1/artifacts/{digest}/manifest"))

    def report(self, id: str) -> dict[str, Any]:
        """Return what a tuning job found."""
        return self._run(calls.json_of(f"/v1/jobs/{id}/report"))

    def targets(self) -> list[dict[str, Any]]:
        """Return every named target of the server's."""
        return list(self._run(calls.json_of("/v1/targets"))["targets"])

    def quota(self) -> dict[str, Any]:
        """Return the owner in whose name the key asks, with its quotas and what it uses of them."""
        return dict(self._run(calls.json_of("/v1/owner")))

    def records(self, digest: str) -> str:
        """Return the tuning records of a set, in the form of docs/tuning.md."""
        return self._run(calls.text_of(f"/v1/records/{digest}")).decode()

    def workers(self) -> dict[str, Any]:
        """Return the servers and workers, for an admin (docs/api.md)."""
        return dict(self._run(calls.json_of("/v1/workers")))

    def audit(self, **filters: str | None) -> dict[str, Any]:
        """Return one page of the audit log, for an admin; `filters` are those of `GET /v1/audit` (docs/api.md)."""
        return dict(self._run(calls.json_of("/v1/audit", **filters)))

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, steps: Steps[T], on_event: Callable[[dict[str, Any]], None] | None = None) -> T:
        flow = Flow(steps)
        with closing(self._drive(flow)) as events:
            for event in events:
                told(event, on_event)
        return flow.result

    def _drive(self, flow: Flow[Any]) -> Generator[Any, None, None]:
        """Performs what the flow wants, and yields what it emits; what is raised meanwhile, the flow gets to handle."""
        with _Opened() as opened:
            action = flow.start()
            while action is not None:
                try:
                    reply = None
                    if isinstance(action, Emit):
                        yield action.value
                    else:
                        reply = self._perform(action, opened)
                except BaseException as error:  # noqa: BLE001  # Ctrl-C too: the flow cancels its job, and raises it again
                    action = flow.throw(error)
                else:
                    action = flow.send(reply)

    def _perform(self, action: Action, opened: _Opened) -> Any:
        match action:
            case Call():
                response = Retrying(**self.connection.patience.policy())(self._send, action)
                return opened.hold(response) if action.stream else response
            case Read():
                with translated(self.connection.url):
                    return opened.read()
            case Sleep(seconds):
                time.sleep(seconds)
                return None
            case Work(function):
                return function()

    def _send(self, call: Call) -> httpx.Response:
        with self.connection.request(self._http, call) as request, translated(self.connection.url):
            response = self._http.send(request, stream=call.stream)
            if not response.is_success:
                response.read()
        return check(response)


class _Opened:
    """The answer that is being read, if any."""

    def __init__(self) -> None:
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def hold(self, response: httpx.Response) -> httpx.Response:
        """Hold a response, and close the one before."""
        self.close()
        self._response, self._chunks = response, response.iter_raw()
        return response

    def read(self) -> bytes:
        return next(self._chunks, b"")

    def close(self) -> None:
        if self._response is not None:
            self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
