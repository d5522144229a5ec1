"""`GET /metrics`: numbers for Prometheus."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse

from relaxc.service.api.auth import require
from relaxc.service.api.metrics import Metrics
from relaxc.service.api.problems import responses
from relaxc.service.jobs.database.rows import Owner

__all__ = ["router"]

router = APIRouter(tags=["service"])

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus's text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    **responses("unauthorized", "forbidden", "rate-limited", "service-error"),
}


@router.get("/metrics", response_class=PlainTextResponse, responses=_TEXT, summary="Numbers for Prometheus")
def metrics(request: Request, owner: Annotated[Owner, Depends(require("read"))]) -> Response:
    """Return requests, jobs, stages, cache, workers. Where the server has keys, it takes one with the scope `read`."""
    found: Metrics = request.app.state.metrics
    return Response(found.text(), media_type=_TYPE)
