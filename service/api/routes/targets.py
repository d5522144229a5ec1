"""`GET /v1/targets`: what can be compiled for."""

from __future__ import annotations

from fastapi import APIRouter, Request

from relaxc.service.api.owners import Reader
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.api.schemas import Target, Targets
from relaxc.service.lowering.target import tags

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["targets"])


@router.get("/targets", summary="Every named target")
def targets(request: Request, _: Reader) -> Targets:
    """List every target, `auto` and `auto-gpu` first where all workers agree on them; `missing` is what these lack."""
    fleet = backend_of(request).fleet
    found = fleet.own_targets() + [(tag.name, tag) for tag in tags()]
    return Targets(targets=[Target(target=name, **spec.to_dict(), missing=fleet.lacks(spec)) for name, spec in found])
