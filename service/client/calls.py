"""Every call of the API, once: what is sent, and what its answer becomes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from relaxc.service.artifact.compiled import CompiledArtifact, check_output
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.client.answers import never_arrived
from relaxc.service.client.download import download
from relaxc.service.client.events import follow
from relaxc.service.client.flow import Call, Steps
from relaxc.service.client.job import Job, JobPage
from relaxc.service.client.upload import external_data, upload
from relaxc.service.errors import JobEnded, RelaxcError, ServerUnreachable, ServiceError
from relaxc.service.request import CompileOptions

__all__ = ["CompileWishes", "cancel", "compile", "fetch", "job", "jobs", "json_of", "run", "submit", "text_of"]


def json_of(path: str, **params: str | None) -> Steps[Any]:
    """Return the JSON of a GET."""
    answer = yield Call("GET", path, params={name: value for name, value in params.items() if value is not None})
    return answer.json()


def text_of(path: str) -> Steps[bytes]:
    """Return the body of a GET."""
    answer = yield Call("GET", path)
    return bytes(answer.content)


def submit(request: Mapping[str, Any], idempotency_key: str | None = None) -> Steps[Job]:
    """Return the job for a `POST /v1/jobs` body, None left out. A key of its own makes it safe to send again."""
    body = {name: value for name, value in request.items() if value is not None}
    headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    answer = yield Call("POST", "/v1/jobs", headers=headers, json=body)
    status = answer.headers.get("cache-status", "")
    return Job.from_dict(answer.json(), shared="collapsed" in status and "repeated" not in status)


def job(id: str) -> Steps[Job]:
    """Return the job as it is now."""
    return Job.from_dict((yield from json_of(f"/v1/jobs/{id}")))


def jobs(**filters: str | None) -> Steps[JobPage]:
    """Return one page of jobs."""
    page = yield from json_of("/v1/jobs", **filters)
    return JobPage(tuple(map(Job.from_dict, page["jobs"])), page["next"])


def cancel(id: str) -> Steps[Job]:
    """End it. Raise JobEnded where it had ended, but not where an answer was lost and the job turns out cancelled."""
    delete = Call("DELETE", f"/v1/jobs/{id}")
    try:
        answer = yield replace(delete, repeatable=False)
    except ServiceError as error:
        if never_arrived(error):
            raise
        try:
            answer = yield delete
        except JobEnded:
            found = yield from job(id)
            if found.state != "cancelled":
                raise
            return found
    return Job.from_dict(answer.json())


def run(request: Mapping[str, Any], timeout_s: float | None = None) -> Steps[tuple[Job, bool]]:
    """Submit, emit its events, and give the job that has succeeded, with whether it had when it was asked for.

    Whatever ends the waiting, Ctrl-C too, cancels the job, unless the server is gone or somebody asked for it before.
    Raise the job's error.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    idempotency_key = uuid.uuid4().hex
    try:
        submitted = yield from submit(request, idempotency_key)
    except RelaxcError:  # refused, or the server is gone
        raise
    except BaseException:  # Ctrl-C: the server may have it
        yield from _take_back(request, idempotency_key)
        raise
    if submitted.ended:
        return submitted.check(), True
    try:
        ended = yield from follow(submitted.id, deadline_s=deadline_s)
    except ServerUnreachable:
        raise
    except BaseException:
        if not submitted.shared:
            yield from _cancel_quietly(submitted.id)
        raise
    return ended.check(), False


def _take_back(request: Mapping[str, Any], idempotency_key: str) -> Steps[None]:
    """Cancels what a submission without an answer has made: sent again under its key, it names the job."""
    with suppress(RelaxcError):
        submitted = yield from submit(request, idempotency_key)
        if not submitted.ended and not submitted.shared:
            yield from cancel(submitted.id)


def _cancel_quietly(id: str) -> Steps[None]:
    with suppress(RelaxcError):  # it has ended by itself, or the server is gone: who gave up is told why, not this
        yield from cancel(id)


class CompileWishes(TypedDict, total=False):
    """What a compile may be told besides the files.

    `data`: files of external data, found by themselves if not given. `target`: as on the command line; `auto` is the
    server's CPU. `records`: digest of a record set. `timeout_s`: time from the submission on, after which the job is
    cancelled.
    """

    data: Iterable[Path] | None
    target: str
    options: CompileOptions | None
    priority: int
    records: str | None
    timeout_s: float | None


def compile(model: Path, output: Path, wishes: CompileWishes) -> Steps[CompiledArtifact]:
    """Upload what is not there, have it compiled, and fetch what came of it."""
    check_output(output, [model])
    options, data = wishes.get("options") or CompileOptions(), wishes.get("data")
    if options.calibration is not None and not options.calibration.is_beside:
        samples = Path(options.calibration.samples)  # sent beside the model, whose digest covers them there
        data = [*(external_data(model) if data is None else data), samples]
        options = replace(options, calibration=replace(options.calibration, samples=samples.name))
    sent = yield from upload(model, data)
    request = {
        "kind": "compile",
        "model": sent.digest,
        "target": wishes.get("target", "auto"),
        "options": options.to_dict(),
        "priority": wishes.get("priority"),
        "records": wishes.get("records"),
    }
    done, cached = yield from run(request, wishes.get("timeout_s"))
    return (yield from fetch(done, output, cached=cached))


def fetch(done: Job, output: Path, *, cached: bool = True) -> Steps[CompiledArtifact]:
    """Return the artifact of a job that has succeeded, at `output`, weights beside it where they are apart."""
    if done.artifact is None:
        raise ServerUnreachable(f"job {done.id} has succeeded without an artifact", job=done.id)
    here = f"/v1/artifacts/{done.artifact}"
    told = Manifest.from_json((yield from text_of(f"{here}/manifest"))).weights
    files = [output]
    if told.file is not None and told.sha256 is not None:  # first, so that no library is there without its weights
        files.append((yield from download(f"{here}/weights", output.with_suffix(Path(told.file).suffix), told.sha256)))
    yield from download(here, output, done.artifact)
    record = done.result.get("build") or {}
    return CompiledArtifact(done.artifact, output, tuple(files), Manifest.read(output), record, cached)
