"""What calls have in common: parameters that must be known, bodies that must be JSON, answers that arrive."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from relaxc.service.api.bodies import body_of
from relaxc.service.api.refusal import EarlyAnswer
from relaxc.service.errors import InvalidOption
from relaxc.service.request import canonical_json

__all__ = ["NAME", "answer", "canonical_body", "json_only", "known_parameters"]

_MAX_KEYS = 64

NAME = Query(
    max_length=200,
    pattern=r"^[^\x00-\x1f\x7f]+$",
    description="What you call it.",
    openapi_examples={"a file": {"value": "resnet.onnx"}},
)


async def known_parameters(request: Request) -> None:
    """Refuse query parameters that the call does not have: a misspelled filter would be no filter."""
    route: APIRoute = request.scope["route"]
    unknown = sorted(set(request.query_params) - {field.alias for field in route.dependant.query_params})
    if unknown:
        raise RequestValidationError(
            [
                {"loc": ("query", name[:80]), "msg": "there is no such parameter", "type": "extra_forbidden"}
                for name in unknown
            ]
        )


async def json_only(request: Request) -> None:
    """Refuse a body that does not say that it is JSON, and one of so many keys that most are in no call.

    Each unknown key would be an error of its own, of a kilobyte and a half.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, f"this call takes application/json, not {kind[:80] or 'a body without a type'}")
    body = await request.json() if await request.body() else None
    if isinstance(body, dict) and len(body) > _MAX_KEYS:
        raise RequestValidationError(
            [{"loc": ("body",), "msg": f"it has {len(body)} keys, over {_MAX_KEYS}", "type": "too_long"}]
        )


def canonical_body(body: Any) -> str:
    """Return equal texts for equal JSON bodies. Raise InvalidOption for text that no database takes: NUL, half a
    surrogate.
    """
    text = canonical_json(body)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidOption("the body has a text that is not Unicode: half of a surrogate pair") from error
    if "\\u0000" in json.dumps(body):
        raise InvalidOption("the body has a text with a NUL character")
    return text


def answer(request: Request, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return JSON, which also reaches a client that is still sending its body."""
    kind = EarlyAnswer if body_of(request).unread else JSONResponse
    return kind(content, status, headers=headers)
