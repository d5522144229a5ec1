"""Errors as RFC 9457 problem+json: ours with their code and remedy, the framework's, and bugs without their trace."""

from __future__ import annotations

import logging
import uuid
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from relaxc.service.api.bodies import body_of
from relaxc.service.api.refusal import EarlyAnswer
from relaxc.service.api.schemas import Problem
from relaxc.service.errors import (
    Fault,
    QuotaExceeded,
    RateLimited,
    RelaxcError,
    ServerDied,
    ServiceError,
    StorageQuotaExceeded,
    Unauthorized,
    UploadConflict,
    by_code,
)

__all__ = ["MEDIA_TYPE", "OF_HTTP", "OfHttp", "install", "of_http", "problem", "responses", "title_of"]

_LOG = logging.getLogger("relaxc.api")

MEDIA_TYPE = "application/problem+json"


class OfHttp(NamedTuple):
    """A code that only HTTP has."""

    status: int
    detail: str
    remedy: str
    fault: Fault = "request"
    retryable: bool = False


_DOCUMENT = "GET /openapi.json says what the call takes."

OF_HTTP = {
    "bad-request": OfHttp(400, "the request is not well-formed HTTP, or its header is over 16 KiB", _DOCUMENT),
    "not-found": OfHttp(404, "there is no such call", "GET /openapi.json lists every call."),
    "method-not-allowed": OfHttp(405, "the call exists, with another method", "The Allow header names the methods."),
    "request-timeout": OfHttp(
        408,
        "the request's body came too slowly",
        "Send at least 64 KiB in each RELAXC_BODY_TIMEOUT_S; an upload by digest goes on where it stopped.",
        retryable=True,
    ),
    "content-too-large": OfHttp(413, "the request's body is too large for this call", _DOCUMENT),
    "unsupported-media-type": OfHttp(415, "the request's body has a type that the call does not take", _DOCUMENT),
    "range-not-satisfiable": OfHttp(416, "the range is outside the file", "Content-Range has the file's size."),
    "invalid-request": OfHttp(422, "a parameter does not fit the call", _DOCUMENT),
    "internal-error": OfHttp(
        500,
        "the server failed: a bug of ours",
        "Report the incident: the server's log has its trace.",
        "service",
    ),
    "too-many-connections": OfHttp(
        503,
        "the server has RELAXC_MAX_CONNECTIONS connections open",
        "Try again later, or keep one connection for several requests.",
        "service",
        retryable=True,
    ),
}
"""The codes that only HTTP has."""

_OF_STATUS = {kind.status: code for code, kind in OF_HTTP.items()}
_RETRY_AFTER_S = 10
_MOST_ERRORS = 20
_NAME_CHARS = 80
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def problem(error: RelaxcError, request: Request | None = None) -> JSONResponse:
    """Return the response for one of our errors; with `request`, one that its sender gets who still sends."""
    body = Problem(
        type=f"/problems/{error.code}",
        title=title_of(error.code),
        status=error.http_status,
        detail=error.message,
        code=error.code,
        remedy=error.remedy,
        fault=error.fault,
        node=error.node,
        retryable=error.retryable,
        fields=error.fields,
    )
    return _response(body, _headers(error), request)


def _headers(error: RelaxcError) -> dict[str, str]:
    match error:
        case Unauthorized():
            return {"WWW-Authenticate": "Bearer"}
        case UploadConflict():
            return {"Upload-Offset": str(error.fields.get("offset", 0))}
        case QuotaExceeded() | StorageQuotaExceeded() if "retry_after_s" not in error.fields:
            return {}
        case RateLimited() | ServiceError() | ServerDied():
            return {"Retry-After": str(int(error.fields.get("retry_after_s", _RETRY_AFTER_S)))}
    return {}


def of_http(
    code: str,
    request: Request | None = None,
    *,
    detail: str | None = None,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> JSONResponse:
    """Return the response for a code that only HTTP has; `request` as for `problem`."""
    status, meaning, remedy, fault, retryable = OF_HTTP[code]
    body = Problem(
        type=f"/problems/{code}",
        title=title_of(code),
        status=status,
        detail=detail or meaning,
        code=code,
        remedy=remedy,
        fault=fault,
        node=None,
        retryable=retryable,
        fields=fields,
    )
    return _response(body, headers or {}, request)


def title_of(code: str) -> str:
    """Return the code in words."""
    return code.replace("-", " ").capitalize()


def _response(body: Problem, headers: dict[str, str], request: Request | None) -> JSONResponse:
    kind = EarlyAnswer if request is not None and body_of(request).unread else JSONResponse
    return kind(body.model_dump(mode="json"), body.status, headers=headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem."""

    @app.exception_handler(RelaxcError)
    async def ours(request: Request, error: RelaxcError) -> JSONResponse:
        return problem(error, request)

    @app.exception_handler(HTTPException)
    async def of_framework(request: Request, error: HTTPException) -> JSONResponse:
        code = _OF_STATUS.get(error.status_code, "bad-request" if error.status_code < 500 else "internal-error")
        detail = f"{request.method} {request.url.path}: {error.detail}"
        headers = dict(error.headers or {}) | ({"Allow": _allowed(request)} if code == "method-not-allowed" else {})
        return of_http(code, request, detail=detail, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        rows = error.errors()
        wrong = [_place(row) for row in rows[:_MOST_ERRORS]]
        fields: dict[str, Any] = {"errors": wrong}
        if len(rows) > _MOST_ERRORS:
            fields["more"] = len(rows) - _MOST_ERRORS
        return of_http("invalid-request", request, detail=_said(wrong), **fields)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody reads it

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        incident = uuid.uuid4().hex
        _LOG.error("incident %s: %s %s", incident, request.method, request.url.path)
        return of_http("internal-error", request, incident=incident)


def _allowed(request: Request) -> str:
    """The methods of the path; a router's own Allow has those of the first route that fits, where several do."""
    routes = request.app.routes
    found = [m for m in _METHODS if any(r.matches({**request.scope, "method": m})[0] is Match.FULL for r in routes)]
    return ", ".join(found)


def _place(row: dict[str, Any]) -> dict[str, Any]:
    return {"where": [str(part)[:_NAME_CHARS] for part in row["loc"]], "what": row["msg"]}


def _said(wrong: list[dict[str, Any]]) -> str | None:
    return "; ".join(f"{'.'.join(row['where'][1:]) or row['where'][0]}: {row['what']}" for row in wrong[:3]) or None


def responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI `responses` of a call that can fail with these codes, by status."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        answer = of_http(code) if code in OF_HTTP else problem(by_code()[code]("…"))
        entry = found.setdefault(answer.status_code, {"description": "", "content": {MEDIA_TYPE: {"examples": {}}}})
        entry["description"] = ", ".join(filter(None, (entry["description"], f"`{code}`")))
        entry["content"][MEDIA_TYPE] |= {"schema": {"$ref": "#/components/schemas/Problem"}}
        example = Problem.model_validate_json(bytes(answer.body)).model_dump()
        entry["content"][MEDIA_TYPE]["examples"][code] = {"value": example}
        if headers := set(answer.headers) & {"retry-after", "www-authenticate", "upload-offset"}:
            entry["headers"] = {name: {"schema": {"type": "string"}} for name in sorted(headers)}
    return found
