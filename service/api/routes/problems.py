"""`GET /problems/{code}`: what the `type` of a problem points to."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.exceptions import HTTPException

from relaxc.service.api.problems import OF_HTTP, responses, title_of
from relaxc.service.api.schemas import ProblemType
from relaxc.service.errors import by_code

__all__ = ["router"]

router = APIRouter(prefix="/problems", tags=["service"])


@router.get("/{code}", responses=responses("not-found"), summary="What a problem means")
async def problem_type(code: str) -> ProblemType:
    """Return the status and remedy of one of our error codes, or of HTTP's."""
    if code in OF_HTTP:
        status, _, remedy, fault, retryable = OF_HTTP[code]
    elif code in by_code():
        kind = by_code()[code]
        status, remedy, fault, retryable = kind.http_status, kind.remedy, kind.fault, kind.retryable
    else:
        raise HTTPException(404, "there is no such problem")
    return ProblemType(code=code, title=title_of(code), status=status, remedy=remedy, fault=fault, retryable=retryable)
