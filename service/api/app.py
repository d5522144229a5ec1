"""The application: routes, problems, and the backend that lives as long as it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

from anyio import to_thread
from fastapi import Depends, FastAPI

from relaxc.service.api.audit import AuditLog
from relaxc.service.api.auth import Anonymous, Gate
from relaxc.service.api.bodies import Bodies
from relaxc.service.api.calls import known_parameters
from relaxc.service.api.counting import Counting
from relaxc.service.api.document import document_of
from relaxc.service.api.drain import Drain, RefuseWork
from relaxc.service.api.framing import OneLength
from relaxc.service.api.metrics import Metrics
from relaxc.service.api.observe import Observe
from relaxc.service.api.problems import install
from relaxc.service.api.routes import (
    artifacts,
    audit,
    compile,
    events,
    health,
    job_files,
    jobs,
    keys,
    metrics,
    models,
    owners,
    page,
    problems,
    records,
    targets,
    uploads,
    workers,
)
from relaxc.service.api.shares import EndCalls, Shares
from relaxc.service.api.tracing import of_requests, open_traces
from relaxc.service.jobs.backend import Backend
from relaxc.service.machine import version_of

__all__ = ["create_app"]

_DESCRIPTION = """A model in, one verified `.so` out.

Errors are RFC 9457 `application/problem+json` with the codes of the command line; `GET /problems/{code}` explains one.
Any call may also answer 503 `too-many-connections`.
"""

_CALLS = (
    compile,
    models,
    uploads,
    jobs,
    events,
    job_files,
    artifacts,
    records,
    targets,
    owners,
    keys,
    audit,
    problems,
    health,
    metrics,
    workers,
)


def create_app(
    open_backend: Callable[[], Backend] = Backend, *, anonymous: Anonymous = Anonymous.WITHOUT_KEYS
) -> FastAPI:
    """Return the API over a backend that is opened when the server starts, its workers warm, and closed when it
    stops.
    """
    numbers, traces = Metrics(), open_traces()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with open_backend() as backend, closing(AuditLog(backend.database)) as log:
            backend.warm()
            app.state.backend, app.state.audit = backend, log
            app.state.gate = Gate(backend.keys, anonymous)
            numbers.watch(backend)
            backend.watchers += [numbers.watch_job, *([traces.watch] if traces else [])]
            yield
            if traces:
                await to_thread.run_sync(traces.close)

    app = FastAPI(
        title="relaxc",
        description=_DESCRIPTION,
        version=version_of("relaxc") or "0",
        lifespan=lifespan,
        telemetry=of_requests(traces),
        redoc_url=None,
        docs_url=None,  # its page loads scripts from elsewhere
    )
    app.state.drain, app.state.metrics, app.state.counting = Drain(), numbers, Counting()
    app.state.shares = Shares()
    install(app)
    app.add_middleware(RefuseWork)
    app.add_middleware(OneLength)
    app.add_middleware(Bodies)
    app.add_middleware(EndCalls)
    app.add_middleware(Observe, metrics=numbers)
    for routes in _CALLS:
        app.include_router(routes.router, dependencies=[Depends(known_parameters)])
    app.include_router(page.router)
    app.openapi = lambda: document_of(app)  # type: ignore[method-assign]  # FastAPI's own way to extend the document
    return app
