"""Errors as RFC 9457 problem+json: ours with their code and remedy, the framework's, and bugs without their trace."""

from __future__ import annotations

import asyncio
import logging
import uuid
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from service.api.schemas import Problem
from service.errors import Busy, RelaxcError, ServiceError, by_code

__all__ = ["MEDIA_TYPE", "OF_HTTP", "Refusal", "install", "problem", "responses", "title_of"]

_LOG = logging.getLogger("relaxc.api")

MEDIA_TYPE = "application/problem+json"

OF_HTTP = {
    "not-found": (404, "there is no such call", "GET /openapi.json lists every call."),
    "method-not-allowed": (405, "the call exists, with another method", "The Allow header names the methods."),
    "invalid-request": (422, "a parameter does not fit the call", "GET /openapi.json says what the call takes."),
    "internal-error": (
        500,
        "the server failed: a bug of ours",
        "Report the incident: the server's log has its trace.",
    ),
}
"""The codes that only HTTP has: status, detail, remedy."""

_RETRY_AFTER_S = 10
_DRAIN_S = 2.0
_DRAIN_BYTES = 256 << 20


def problem(error: RelaxcError, kind: type[JSONResponse] = JSONResponse) -> JSONResponse:
    """The response for one of our errors."""
    headers = {"Retry-After": str(_RETRY_AFTER_S)} if isinstance(error, Busy | ServiceError) else {}
    return _response(error.http_status, error.code, error.message, error.remedy, error.fields, headers, kind)


def title_of(code: str) -> str:
    """The code in words."""
    return code.replace("-", " ").capitalize()


def _response(
    status: int,
    code: str,
    detail: str,
    remedy: str,
    fields: dict[str, Any],
    headers: dict[str, str],
    kind: type[JSONResponse] = JSONResponse,
) -> JSONResponse:
    body = Problem(
        type=f"/problems/{code}",
        title=title_of(code),
        status=status,
        detail=detail,
        code=code,
        remedy=remedy,
        fields=fields,
    )
    return kind(body.model_dump(mode="json"), status, headers=headers, media_type=MEDIA_TYPE)


class Refusal(JSONResponse):
    """An answer given before the request's body was read.

    A server that closes a connection with unread data resets it, and a client that is still sending may never
    see the answer. So the whole answer is sent, then what comes is thrown away for at most two seconds and 256 MiB
    (a local client sends 2 GB/s), then the connection closes.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer and drains the request."""
        self.headers["Connection"] = "close"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        drained = 0
        try:
            async with asyncio.timeout(_DRAIN_S):
                while drained < _DRAIN_BYTES and (message := await receive()).get("more_body"):
                    drained += len(message.get("body", b""))
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def install(app: FastAPI) -> None:
    """Every error of `app` becomes a problem."""

    @app.exception_handler(RelaxcError)
    async def ours(request: Request, error: RelaxcError) -> JSONResponse:
        return problem(error)

    @app.exception_handler(HTTPException)
    async def of_framework(request: Request, error: HTTPException) -> JSONResponse:
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        _, _, remedy = OF_HTTP.get(code, OF_HTTP["not-found"])
        detail = f"{request.method} {request.url.path}: {error.detail}"
        return _response(error.status_code, code, detail, remedy, {}, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        wrong = [{"where": list(map(str, row["loc"])), "what": row["msg"]} for row in error.errors()]
        return _of_http("invalid-request", {"errors": wrong})

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        incident = uuid.uuid4().hex
        _LOG.error("incident %s: %s %s", incident, request.method, request.url.path)
        return _of_http("internal-error", {"incident": incident})


def _of_http(code: str, fields: dict[str, Any]) -> JSONResponse:
    status, detail, remedy = OF_HTTP[code]
    return _response(status, code, detail, remedy, fields, {})


def responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI `responses` of a call that can fail with these codes, by status."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        error = by_code()[code]
        entry = found.setdefault(error.http_status, {"description": "", "content": {MEDIA_TYPE: {"examples": {}}}})
        entry["description"] = ", ".join(filter(None, (entry["description"], f"`{code}`")))
        body = bytes(problem(error("…")).body)
        entry["content"][MEDIA_TYPE] |= {"schema": {"$ref": "#/components/schemas/Problem"}}
        entry["content"][MEDIA_TYPE]["examples"][code] = {"value": Problem.model_validate_json(body).model_dump()}
    return found
