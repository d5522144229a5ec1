"""`/v1/workers`: the servers and workers of the database, for an admin."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from relaxc.service.api.owners import Admin
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.api.worker_objects import Workers

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["service"])


@router.get("/workers", response_model=Workers, summary="Every server and worker")
def list_workers(request: Request, owner: Admin) -> Response:
    """List servers and workers with their machines, the oldest first. A dead one is `silent`, then disappears."""
    found = backend_of(request).fleet.every(fresh=True)
    return JSONResponse({"workers": [each.to_dict() for each in found]}, headers={"Cache-Control": "no-store"})
