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
        status, _, remedy = OF_HTTP[code]
    elif code in by_code():
        status, remedy = by_code()[code].http_status, by_code()[code].remedy
    else:
        raise HTTPException(404, "there is no such problem")
    return ProblemType(code=code, title=title_of(code), status=status, remedy=remedy)
