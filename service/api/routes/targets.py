"""`GET /v1/targets`: what can be compiled for."""

from __future__ import annotations

from fastapi import APIRouter

from service.api.owners import Reader
from service.api.schemas import Target, Targets
from service.lowering.target import listed, missing_features

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["targets"])


@router.get("/targets", summary="Every named target")
def targets(_: Reader) -> Targets:
    """Return the server's own machine first: `auto` is its CPU, `auto-gpu` its GPU if it has one."""
    rows = [Target(target=name, **spec.to_dict(), missing=missing_features(spec)) for name, spec in listed()]
    return Targets(targets=rows)
