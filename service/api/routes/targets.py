"""`GET /v1/targets`: what can be compiled for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from service.api.auth import require
from service.api.schemas import Target, Targets
from service.jobs.database.rows import Owner
from service.lowering.target import listed, missing_features

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["targets"])


@router.get("/targets", summary="Every named target")
def targets(_: Annotated[Owner, Depends(require("read"))]) -> Targets:
    """The server's own machine first: `auto` is its CPU, `auto-gpu` its GPU if it has one."""
    rows = [Target(target=name, **spec.to_dict(), missing=missing_features(spec)) for name, spec in listed()]
    return Targets(targets=rows)
