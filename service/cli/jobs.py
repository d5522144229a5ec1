"""`relaxc --server URL jobs ls|show|logs|wait|cancel`: the jobs of a server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, facts, print_json, printable, seconds, shown_value, table
from relaxc.service.cli.progress import StageProgress
from relaxc.service.cli.remote import Remote
from relaxc.service.errors import CompilerTimeout, InvalidOption, JobNotFound

if TYPE_CHECKING:
    from relaxc.service.client import Client, Event, Job

__all__ = ["app", "cancel", "logs", "ls", "show", "wait"]

app = typer.Typer(help="List, show, follow, await and cancel the jobs of a server.", no_args_is_help=True)

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Kind = Literal["compile", "tune", "bench", "verify"]

_SHORT = 12
"""Letters of an id that `ls` shows; the other verbs take as many as tell it from others."""

_PAGE = 500
_LOG_PAUSE_S = 1.0

Id = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, or its first letters: `relaxc jobs ls`.")]


@app.command()
def ls(
    context: typer.Context,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only those of this kind.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=_PAGE, help="Show at most N jobs.", metavar="N")] = 50,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List your jobs on the server, the newest first."""
    with _remote(context).client() as client:
        page = client.jobs(state=state, kind=kind, limit=str(limit))
    if json:
        print_json({"jobs": [job.data for job in page.jobs], "next": page.next})
        return
    shown = table("", "job", "kind", "state", "model", "submitted", "took")
    for job in page.jobs:
        name = printable(shown_value(job.data.get("name")))
        shown.add_row(job.id[:_SHORT], job.kind, _state(job), name, _moment(job.data.get("created")), _took(job))
    console().print(shown)
    if page.next is not None:
        print(f"There are more: --limit N shows up to {_PAGE}.")


@app.command()
def show(context: typer.Context, id: Id, json: Json = False, verbose: Verbose = False) -> None:
    """Show one job: what was asked for, how far it is, and what came of it."""
    with _remote(context).client() as client:
        job = _found(client, id)
    _print(job, json)


@app.command()
def logs(
    context: typer.Context,
    id: Id,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print what the job's process wrote; with --follow, the stages too, on stderr.

    With --json it is one object that has the log as `log`.
    """
    with _remote(context).client() as client:
        job = _found(client, id)
        if json:
            if follow:
                client.wait(job.id)
            print_json({"job": job.id, "log": client.logs(job.id)})
        elif follow:
            for text in _followed(client, job.id):
                print(text, end="", flush=True)
        else:
            print(client.logs(job.id), end="")


@app.command()
def wait(
    context: typer.Context,
    id: Id,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Stop waiting after S seconds; the job goes on.")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Wait until the job ends, and show it. Where it failed, the exit code is that of its error."""
    with _remote(context).client() as client:
        job = _found(client, id)
        try:
            job = client.wait(job.id, timeout_s=timeout)
        except CompilerTimeout as error:
            error.remedy = "Give --timeout more seconds, or none; the job goes on."  # type: ignore[misc]
            raise
    _print(job.check(), json)


@app.command()
def cancel(context: typer.Context, id: Id, json: Json = False, verbose: Verbose = False) -> None:
    """Cancel a job that waits or runs."""
    with _remote(context).client() as client:
        job = client.cancel(_found(client, id).id)
    if json:
        print_json(job.data)
    else:
        print(f"{job.id} is cancelled")


def _remote(context: typer.Context) -> Remote:
    remote: Remote = context.obj
    if remote.url is None:
        raise InvalidOption(
            "jobs are a server's",
            remedy="Name it before the verb, `relaxc --server URL jobs …`, or in RELAXC_SERVER.",
            option="server",
        )
    return remote


def _found(client: Client, id: str) -> Job:
    """The job with this id, or the only one whose id begins so. Raise JobNotFound, InvalidOption for several."""
    if not re.fullmatch(r"\w+", id, re.ASCII):
        raise JobNotFound(f"there is no job {id}", job=id)
    try:
        return client.job(id)
    except JobNotFound:
        matching = sorted({job.id for job in _every(client) if job.id.startswith(id)})
        if not matching:
            raise
    if len(matching) > 1:
        some = ", ".join(matching[:4])
        raise InvalidOption(f"{len(matching)} jobs begin with {id}: {some}", remedy="Give more letters.", option="JOB")
    return client.job(matching[0])


def _every(client: Client) -> Iterator[Job]:
    cursor = None
    while True:
        page = client.jobs(limit=str(_PAGE), cursor=cursor)
        yield from page.jobs
        cursor = page.next
        if cursor is None:
            return


def _followed(client: Client, id: str) -> Iterator[str]:
    """The parts of the log as they come. It is asked for after an event, at most once a second, and at the end."""
    seen, asked = 0, float("-inf")
    with StageProgress() as progress:
        for event in client.events(id):
            _show_event(progress, event)
            if event.kind == "done" or time.monotonic() - asked > _LOG_PAUSE_S:
                text, asked = client.logs(id), time.monotonic()
                yield text[seen:]
                seen = len(text)


def _show_event(progress: StageProgress, event: Event) -> None:
    if event.kind not in ("state", "done"):
        progress({"event": event.kind, **event.data})


def _print(job: Job, json: bool) -> None:
    if json:
        print_json(job.data)
        return
    data = job.data
    rows = [("job", job.id), ("kind", job.kind), ("state", _state(job)), ("model", shown_value(data.get("name")))]
    rows += [("digest", shown_value(job.model)), ("target", shown_value(data.get("resolved") or data.get("target")))]
    rows += [(name, _moment(data.get(name))) for name in ("created", "started", "finished", "expires")]
    rows += [("took", _took(job)), ("artifact", shown_value(job.artifact)), ("records", shown_value(job.records))]
    if job.error is not None:
        rows += [("error", f"[{job.error.code}] {job.error.message}"), ("remedy", job.error.remedy)]
    facts((name, printable(value)) for name, value in rows if value != "-")


def _state(job: Job) -> str:
    """`running: schedule 3/10` of one that runs, else its state."""
    if job.state != "running" or job.stage is None:
        return job.state
    return f"running: {job.stage}" + (f" {job.progress[0]}/{job.progress[1]}" if job.progress else "")


def _moment(text: Any) -> str:
    """A time of the server's on this machine's clock."""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M") if text else "-"


def _took(job: Job) -> str:
    started, finished = job.data.get("started"), job.data.get("finished")
    if not started or not finished:
        return "-"
    return seconds((datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds())
