"""The application: routes, problems, and the backend that lives as long as it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import FastAPI

from service.api.problems import install
from service.api.routes import artifacts, compile, health, page, problems, targets
from service.api.schemas import Problem
from service.jobs.backend import Backend

__all__ = ["create_app"]

_DESCRIPTION = """A model in, one verified `.so` out.

Errors are RFC 9457 `application/problem+json` with the codes of the command line; `GET /problems/{code}` explains one.
"""


def create_app(open_backend: Callable[[], Backend] = Backend) -> FastAPI:
    """The API over a backend that is opened when the server starts, its workers warm, and closed when it stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with open_backend() as backend:
            backend.warm()
            app.state.backend = backend
            yield

    app = FastAPI(
        title="relaxc",
        description=_DESCRIPTION,
        version=_version(),
        lifespan=lifespan,
        redoc_url=None,
        docs_url=None,  # its page loads scripts from elsewhere
    )
    install(app)
    for routes in (compile, artifacts, targets, problems, health, page):
        app.include_router(routes.router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's own way to extend the document
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with our problems where it has its own form of a 422."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    document = FastAPI.openapi(app)
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = Problem.model_json_schema()
    for call in [call for calls in document["paths"].values() for call in calls.values()]:
        if "HTTPValidationError" in str(call["responses"].get("422")):
            del call["responses"]["422"]  # a path parameter of ours is any text
    return document


def _version() -> str:
    try:
        return metadata.version("relaxc")
    except metadata.PackageNotFoundError:
        return "0"
