"""The OpenAPI document: FastAPI's, with what every call can answer, and who may call."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from relaxc.service.api.problems import MEDIA_TYPE, responses
from relaxc.service.api.schemas import Problem

__all__ = ["document_of"]

_KEY = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "rk_…",
    "description": "Needed as soon as the server has a key; `relaxc serve` on loopback begins without.",
}
_OF_ALL = ("invalid-request", "internal-error")
_OF_KEYS = ("unauthorized", "forbidden", "rate-limited", "service-error")
"""Whose a key is, the database knows; and while the server drains, POST and PUT are refused."""

_OF_BODIES = ("bad-request", "request-timeout", "content-too-large")


def document_of(app: FastAPI) -> dict[str, Any]:
    """Return the document, made once for each application."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    document = FastAPI.openapi(app)
    components = document["components"]
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    components["schemas"]["Problem"] = Problem.model_json_schema()
    components["securitySchemes"] = {"key": _KEY}
    for path, calls in document["paths"].items():
        for call in calls.values():
            _complete(call, keyed=path.startswith("/v1/"))
    return document


def _complete(call: dict[str, Any], *, keyed: bool) -> None:
    """Adds the answers that any call of its sort can give."""
    if "HTTPValidationError" in str(call["responses"].get("422")):
        del call["responses"]["422"]  # FastAPI's own form of it
    for parameter in call.get("parameters", ()):
        _require_a_value(parameter["schema"])
    codes = (*_OF_ALL, *(_OF_KEYS if keyed else ()), *(_OF_BODIES if "requestBody" in call else ()))
    for status, more in responses(*codes).items():
        _merge(call["responses"].setdefault(str(status), {"description": "", "content": {}}), more)
    if keyed:
        call["security"] = [{"key": []}, {}]  # the second: where the server has no keys


def _require_a_value(schema: dict[str, Any]) -> None:
    """What may be absent is null in Python; no header or query parameter can be null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        del schema["anyOf"]
        schema |= kinds[0]


def _merge(answer: dict[str, Any], more: dict[str, Any]) -> None:
    known = answer.setdefault("content", {}).setdefault(MEDIA_TYPE, {"examples": {}})
    added = more["content"][MEDIA_TYPE]
    new = [code for code in added["examples"] if code not in known["examples"]]
    known["schema"] = added["schema"]
    known["examples"] |= {code: added["examples"][code] for code in new}
    answer["description"] = ", ".join(filter(None, (answer["description"], *(f"`{code}`" for code in new))))
    answer["headers"] = answer.get("headers", {}) | more.get("headers", {})
