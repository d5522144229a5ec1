"""The owner behind a request, by the scope that a call needs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from relaxc.service.api.auth import require
from relaxc.service.jobs.database.rows import Owner

__all__ = ["Admin", "Anybody", "Compiler", "Reader", "Tuner", "Worker"]

Reader = Annotated[Owner, Depends(require("read"))]
Compiler = Annotated[Owner, Depends(require("compile"))]
Tuner = Annotated[Owner, Depends(require("tune"))]
Worker = Annotated[Owner, Depends(require("compile", "tune"))]
"""Either of the two: which one depends on the kind of the job."""

Anybody = Annotated[Owner, Depends(require("read", "compile", "tune"))]
"""Whoever has a key."""

Admin = Annotated[Owner, Depends(require("admin"))]
