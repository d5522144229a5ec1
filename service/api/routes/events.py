"""`GET /v1/jobs/{id}/events`: what happens to a job, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Request, Response
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import AppStatus, EventSourceResponse

from relaxc.service.api.auth import while_allowed
from relaxc.service.api.ids import JobId
from relaxc.service.api.owners import Reader
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.jobs.database.rows import EventRow, JobRow, Owner, iso_time

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

# The backend ends every stream when it stops; until then a server that drains goes on telling.
AppStatus.enable_automatic_graceful_drain = False

_PING_S = 15
_SEND_TIMEOUT_S = 60.0
_EXAMPLE = """id: 4
event: stage
data: {"time": "2026-11-21T08:00:01.250Z", "event": "stage", "stage": "schedule", "state": "start"}

id: 5
event: progress
data: {"time": "2026-11-21T08:00:01.900Z", "event": "progress", "stage": "schedule", "done": 3, "total": 28}

"""
_EVENT = {
    "description": "One event; `data` is JSON.",
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"type": "string", "examples": ["stage", "progress", "log", "metric", "state", "done"]},
        "data": {"type": "string"},
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The events, until `done`, whose data is the job.",
        "content": {"text/event-stream": {"schema": _EVENT, "examples": {"a compile": {"value": _EXAMPLE}}}},
    },
    204: {"description": "`done` has been told: there is nothing to come back for."},
    **responses("job-not-found", "invalid-request"),
}


@router.get("/{id}/events", response_class=EventSourceResponse, responses=_RESPONSES, summary="A job's events")
async def events(
    id: JobId,
    request: Request,
    owner: Reader,
    last_event_id: Annotated[
        int, Header(ge=0, le=2**31 - 1, description="The last event that you have.", examples=[3])
    ] = 0,
) -> Response:
    """Send past events first, then each new one. `event:` is stage, progress, log, metric, state or done; `id:` is the
    event's number. `Last-Event-ID` continues after that event. An idle stream sends a comment every 15 s. A stream ends
    within a second of the revocation of its key.
    """
    backend, after = backend_of(request), last_event_id
    job = await to_thread.run_sync(backend.jobs.get, owner, id)
    if job.ended and after > job.events:
        return Response(status_code=204)
    rows = None
    if not (job.ended and after == job.events):
        rows = await to_thread.run_sync(partial(backend.jobs.stream, owner, id, after=after))
    return EventSourceResponse(_told(request, owner, job, rows), ping=_PING_S, sep="\n", send_timeout=_SEND_TIMEOUT_S)


async def _told(
    request: Request, owner: Owner, job: JobRow, rows: AsyncGenerator[EventRow] | None
) -> AsyncIterator[ServerSentEvent]:
    backend = backend_of(request)
    number, ended = job.events, rows is None
    if rows is not None:
        async for row in while_allowed(request, rows):
            data = json.dumps({"time": iso_time(row.time), **row.data})
            yield ServerSentEvent(data, event=str(row.data.get("event", "log")), id=str(row.seq), sep="\n")
            number, ended = max(number, row.seq), row.last
    if ended:
        last = await to_thread.run_sync(partial(backend.jobs.get, owner, job.id))
        yield ServerSentEvent(json.dumps(last.to_dict()), event="done", id=str(number + 1), sep="\n")
