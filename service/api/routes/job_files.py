"""`/v1/jobs/{id}/logs` and `/report`: what a job's process printed, and what a tuning found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from relaxc.service.api.files import RangedFile
from relaxc.service.api.ids import JobId
from relaxc.service.api.owners import Reader
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.jobs.database.rows import Owner

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_CHUNK_BYTES = 256 << 10
_LOG: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "What was printed up to now.",
        "content": {"text/plain": {"schema": {"type": "string"}, "example": "import: 152 nodes\n"}},
    },
    **responses("job-not-found"),
}


def _in_ranges(description: str, content: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"description": description, "content": content},
        206: {
            "description": "The asked-for range of it, or several.",
            "content": content | {"multipart/byteranges": {}},
        },
        **responses("job-not-found", "range-not-satisfiable"),
    }


_REPORT = _in_ranges("The report.", {"application/json": {"schema": {"type": "object"}}})
_CURVE = _in_ranges("The best time over the trials.", {"image/svg+xml": {"schema": {"type": "string"}}})


@router.get("/{id}/logs", response_class=PlainTextResponse, responses=_LOG, summary="A job's log")
def logs(id: JobId, request: Request, owner: Reader) -> Response:
    """Return what its process printed, also while it runs; empty where it printed nothing."""
    file = backend_of(request).jobs.log(owner, id)
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return PlainTextResponse("", headers=headers) if file is None else _Log(file, headers)


class _Log(StreamingResponse):
    """What an open file has now; a log that grows has no length to announce, and none without end is sent."""

    media_type = "text/plain"

    def __init__(self, file: BinaryIO, headers: dict[str, str]) -> None:
        super().__init__(_content(file), headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it, and closes the file."""
        with self._file:
            await super().__call__(scope, receive, send)


def _content(file: BinaryIO) -> Iterator[bytes]:
    left = os.fstat(file.fileno()).st_size
    while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
        left -= len(chunk)
        yield chunk


@router.get("/{id}/report", response_class=FileResponse, responses=_REPORT, summary="A tuning's report")
def report(id: JobId, request: Request, owner: Reader) -> Response:
    """Return JSON: what was tried, what won, and by how much."""
    return _file(request, owner, id, "report.json", "application/json")


@router.get("/{id}/report/curve.svg", response_class=FileResponse, responses=_CURVE, summary="A tuning's curve")
def curve(id: JobId, request: Request, owner: Reader) -> Response:
    """Return the picture of the report."""
    return _file(request, owner, id, "curve.svg", "image/svg+xml")


@router.get("/{id}/report/curve.png", response_class=FileResponse, include_in_schema=False)
def former_curve(id: JobId, request: Request, owner: Reader) -> Response:
    """Return the picture of a tuning that relaxc of before 2026-11-23 ran."""
    return _file(request, owner, id, "curve.png", "image/png")


def _file(request: Request, owner: Owner, id: str, name: str, media_type: str) -> RangedFile:
    path = backend_of(request).jobs.file(owner, id, name)
    return RangedFile(path, media_type=media_type, headers={"X-Content-Type-Options": "nosniff"})
