"""A job's events, in order and each once, however often the connection is lost."""

from __future__ import annotations

import json
import time
from typing import Any

from relaxc.service.client.flow import Call, Emit, Read, Sleep, Steps
from relaxc.service.client.job import Event, Job
from relaxc.service.client.sse import Message, Parser
from relaxc.service.errors import CompilerTimeout, ServerUnreachable

__all__ = ["follow"]

_FRUITLESS = 6
"""Streams in a row that end without an event; each opening has its own patience besides."""

_PAUSE_S = 0.5


def follow(job_id: str, *, after: int = 0, deadline_s: float | None = None) -> Steps[Job]:
    """Emit an `Event` for each after number `after`; the result is the job at its end.

    `deadline_s` is on `time.monotonic()`, looked at whenever the server says something, which it does every 15 s.
    Raise JobNotFound, CompilerTimeout at the deadline, and ServerUnreachable when the server stays away.
    """
    parser = Parser(last_id=str(after) if after else "")
    fruitless = 0
    while True:
        seen = parser.last_id
        try:
            job = yield from _one_stream(job_id, parser, deadline_s)
        except ServerUnreachable:
            if fruitless >= _FRUITLESS:
                raise
        else:
            if job is not None:
                return job
        fruitless = 0 if parser.last_id != seen else fruitless + 1
        if fruitless > _FRUITLESS:
            raise ServerUnreachable(f"the events of job {job_id} end before the job does", job=job_id)
        _check_deadline(job_id, deadline_s)
        parser = Parser(last_id=parser.last_id)  # what was cut off in the middle comes again
        yield Sleep(_PAUSE_S)


def _one_stream(job_id: str, parser: Parser, deadline_s: float | None) -> Steps[Job | None]:
    """Reads until the connection ends; the job if it has ended."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    if parser.last_id:
        headers["Last-Event-ID"] = parser.last_id
    answer = yield Call("GET", f"/v1/jobs/{job_id}/events", headers=headers, stream=True, resumes=True)
    if answer.status_code == 204:  # there is nothing after the event that we have
        return Job.from_dict((yield Call("GET", f"/v1/jobs/{job_id}", resumes=True)).json())
    while chunk := (yield Read()):
        for message in _messages(parser, chunk):
            event = _event(message)
            yield Emit(event)
            if event.kind == "done":
                return Job.from_dict(event.data)
        _check_deadline(job_id, deadline_s)
    return None


def _messages(parser: Parser, chunk: bytes) -> list[Message]:
    try:
        return list(parser.feed(chunk))
    except ValueError as error:
        raise ServerUnreachable(f"the server sends {error}") from error


def _event(message: Message) -> Event:
    try:
        data: Any = json.loads(message.data)
        number = int(message.id or 0)
    except ValueError as error:
        raise ServerUnreachable(f"the server's event is not as docs/api.md says: {message.data[:80]!r}") from error
    return Event(number, message.event, data if isinstance(data, dict) else {"value": data})


def _check_deadline(job_id: str, deadline_s: float | None) -> None:
    if deadline_s is not None and time.monotonic() > deadline_s:
        raise CompilerTimeout(
            f"job {job_id} had not ended when the time was over", remedy="Give it more time.", job=job_id
        )
