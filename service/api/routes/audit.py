"""`/v1/audit`: who did what, for an admin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import AwareDatetime, BeforeValidator

from relaxc.service.api import objects
from relaxc.service.api.owners import Admin
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.jobs.database.rows import AuditFilter, AuditRow

__all__ = ["router"]

router = APIRouter(prefix="/v1/audit", tags=["keys"])

_ERRORS = responses("invalid-option", "invalid-request")
_JSONL = "application/jsonl"
_EXAMPLE = '{"time": "2026-11-21T08:00:00.000Z", "key": "k_4fUqk0ZtX1aW", "action": "POST /v1/jobs", "…": "…"}\n'
_EXPORT: dict[int | str, dict[str, Any]] = {
    200: {"description": "A row a line.", "content": {_JSONL: {"schema": {"type": "string"}, "example": _EXAMPLE}}},
    **_ERRORS,
}

Word = Annotated[str | None, Query(max_length=200, pattern=objects.LINE)]


def _no_number(value: Any) -> Any:
    """A date and a time: pydantic takes a number for one, too, which the document does not say."""
    if isinstance(value, str) and not value[4:].startswith("-"):
        raise ValueError("a time is written as 2026-11-21T08:00:00Z")
    return value


Moment = Annotated[AwareDatetime | None, BeforeValidator(_no_number), Query(examples=["2026-11-21T08:00:00Z"])]


def _wanted(since: AwareDatetime | None, until: AwareDatetime | None, **words: str | None) -> AuditFilter:
    begin, end = (None if moment is None else moment.timestamp() for moment in (since, until))
    return AuditFilter(since=begin, until=end, **words)


@router.get("", response_model=objects.AuditPage, responses=_ERRORS, summary="The audit log")
def list_audit(
    request: Request,
    admin: Admin,
    since: Moment = None,
    until: Moment = None,
    owner: Word = None,
    key: Word = None,
    action: Word = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 50,
    cursor: Annotated[
        str | None, Query(max_length=200, pattern=r"^[\x21-\x7e]+$", description="`next` of the page before.")
    ] = None,
) -> Response:
    """Return the newest first, a page at a time: of `since` or later, before `until`, of an owner, a key, an action."""
    wanted = _wanted(since, until, owner=owner, key=key, action=action)
    page = backend_of(request).audit.page(wanted, limit=limit, cursor=cursor)
    return JSONResponse({"rows": [row.to_dict() for row in page.rows], "next": page.next})


@router.get("/export", response_class=Response, responses=_EXPORT, summary="The audit log as JSON lines")
def export_audit(
    request: Request,
    admin: Admin,
    since: Moment = None,
    until: Moment = None,
    owner: Word = None,
    key: Word = None,
    action: Word = None,
) -> Response:
    """Return all of it, or what the same filters choose, the oldest first."""
    rows = backend_of(request).audit.export(_wanted(since, until, owner=owner, key=key, action=action))
    headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="audit.jsonl"'}
    return StreamingResponse(_lines(rows), media_type=_JSONL, headers=headers)


def _lines(pages: Iterator[list[AuditRow]]) -> Iterator[str]:
    for rows in pages:
        yield "".join(f"{json.dumps(row.to_dict())}\n" for row in rows)
