"""`GET /healthz` and `/readyz`: that the server answers, and that it takes requests."""

from __future__ import annotations

from fastapi import APIRouter, Request

from relaxc.service.api.counting import Counting
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.api.schemas import Health, Ready
from relaxc.service.errors import ServiceError

__all__ = ["router"]

router = APIRouter(tags=["service"])


@router.get("/healthz", summary="Whether the server answers, and what it does")
async def healthz(request: Request) -> Health:
    """Answer at once, also while jobs run. The counts are null where the database does not answer within a second."""
    counting: Counting = request.app.state.counting
    counts = await counting.now(backend_of(request).counts)
    running, waiting = (counts.running, counts.waiting) if counts else (None, None)
    return Health(status="ok", version=request.app.version, running=running, waiting=waiting)


@router.get("/readyz", responses=responses("service-error"), summary="Whether the server takes requests")
def readyz(request: Request) -> Ready:
    """Answer 503 while it drains, or cannot reach its database or write its folders: a proxy should go elsewhere."""
    if reasons := backend_of(request).ready():
        raise ServiceError(f"the server takes no requests: {'; '.join(reasons)}", reasons=reasons)
    sandbox = {flavour.value: found for flavour, found in backend_of(request).pool.ready().items()}
    return Ready(ready=True, sandbox=sandbox, limits=backend_of(request).bound.to_dict())
