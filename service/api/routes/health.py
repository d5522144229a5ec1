"""`GET /healthz`: that the server answers."""

from __future__ import annotations

from fastapi import APIRouter, Request

from service.api.routes.backend import backend_of
from service.api.schemas import Health

__all__ = ["router"]

router = APIRouter(tags=["service"])


@router.get("/healthz", summary="Whether the server answers, and what it does")
async def healthz(request: Request) -> Health:
    """Answers at once, also while compiles run."""
    running, waiting = backend_of(request).queue.counts()
    return Health(status="ok", version=request.app.version, running=running, waiting=waiting)
