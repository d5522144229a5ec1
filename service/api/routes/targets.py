"""`GET /v1/targets`: what can be compiled for."""

from __future__ import annotations

from fastapi import APIRouter

from service.api.schemas import Target, Targets
from service.errors import InvalidTarget
from service.lowering.target import resolve, tags
from service.machine import missing_features

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["targets"])


@router.get("/targets", summary="Every named target")
def targets() -> Targets:
    """The server's own machine first: `auto` is its CPU, `auto-gpu` its GPU if it has one."""
    found = []
    for name in ("auto", "auto-gpu"):
        try:
            found.append((name, resolve(name)))
        except InvalidTarget:  # there is no GPU here, or no code generator for this CPU
            continue
    found += [(tag.name, tag) for tag in tags()]
    return Targets(
        targets=[Target(target=name, **spec.to_dict(), missing=list(missing_features(spec))) for name, spec in found]
    )
