"""`GET /problems/{code}`: what the `type` of a problem points to."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.exceptions import HTTPException

from service.api.problems import OF_HTTP, responses, title_of
from service.api.schemas import ProblemType
from service.errors import by_code

__all__ = ["router"]

router = APIRouter(prefix="/problems", tags=["service"])


@router.get("/{code}", responses=responses(), summary="What a problem means")
async def kind(code: str) -> ProblemType:
    """The status and remedy of one of our error codes, or of HTTP's."""
    if code in OF_HTTP:
        status, meaning, remedy = OF_HTTP[code]
    elif code in by_code():
        error = by_code()[code]
        status, meaning, remedy = error.http_status, f"docs/errors.md: {error.__name__}", error.remedy
    else:
        raise HTTPException(404, "there is no such problem")
    return ProblemType(code=code, title=title_of(code), status=status, meaning=meaning, remedy=remedy)
