"""`/v1/jobs`: what is to be done, what is being done, what was done."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Body, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from relaxc.service.api import objects
from relaxc.service.api.calls import canonical_body, json_only
from relaxc.service.api.ids import JobId
from relaxc.service.api.options import compile_options
from relaxc.service.api.owners import Reader, Worker
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.errors import Forbidden, InvalidOption
from relaxc.service.jobs.database.rows import JobKind, JobRequest, JobRow, Owner
from relaxc.service.jobs.job import State, Submitted

__all__ = ["ACCEPTED", "CACHE_STATUS", "router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

CACHE_STATUS = {  # RFC 9211
    "hit": "relaxc; hit",
    "miss": "relaxc; fwd=miss; stored",
    "joined": "relaxc; fwd=miss; stored; collapsed",
    "repeated": "relaxc; fwd=miss; stored; collapsed; detail=repeated",
}

ACCEPTED: dict[str, Any] = {
    "model": objects.Job,
    "description": "The job; Cache-Status tells whether it is new.",
    "headers": {
        "Location": {"description": "The job.", "schema": {"type": "string"}},
        "Cache-Status": {"description": "RFC 9211.", "schema": {"type": "string"}},
    },
}
_SUBMIT: dict[int | str, dict[str, Any]] = {
    202: ACCEPTED,
    **responses(
        *("invalid-option", "invalid-target", "invalid-shape", "unsupported-media-type", "content-too-large"),
        *("model-not-found", "artifact-not-found", "records-not-found", "idempotency-conflict", "invalid-request"),
        *("busy", "quota-exceeded", "storage-quota-exceeded", "service-error", "store-unwritable", "store-unreachable"),
    ),
}
_EXAMPLES: dict[str, Any] = {
    "compile": {"value": {"kind": "compile", "model": "9f" * 32, "target": "auto", "options": {"opt_level": 2}}},
    "tune": {"value": {"kind": "tune", "model": "9f" * 32, "trials": 256, "time_s": 600}},
    "bench": {"value": {"kind": "bench", "artifact": "9f" * 32, "time_s": 5}},
    "verify": {"value": {"kind": "verify", "model": "9f" * 32, "artifact": "9f" * 32}},
}


@router.post("", status_code=202, responses=_SUBMIT, dependencies=[Depends(json_only)], summary="Submit a job")
async def submit_job(
    request: Request,
    wanted: Annotated[objects.JobSubmission, Body(openapi_examples=_EXAMPLES)],
    owner: Worker,
    idempotency_key: Annotated[
        str | None,
        Header(
            description="Repeats the first answer to the same body.",
            pattern=r"^[\x21-\x7e]{1,255}$",
            examples=["8e03978e-40d5-43e8-bc93-6894a57f9324"],
        ),
    ] = None,
) -> Response:
    """Submit a job. It is on the server's disk before the answer; an equal unfinished job of yours is returned instead.

    Tuning needs the scope `tune`; other kinds need `compile`.
    """
    needed = "tune" if wanted.kind is JobKind.TUNE else "compile"
    if needed not in owner.scopes:
        raise Forbidden(f"a job of kind {wanted.kind} needs the scope {needed}", scope=needed)
    submitted = await to_thread.run_sync(_submit, request, wanted, owner, idempotency_key)
    headers = {"Location": f"/v1/jobs/{submitted.job.id}", "Cache-Status": CACHE_STATUS[submitted.origin]}
    return JSONResponse(submitted.job.to_dict(), 202, headers=headers)


def _submit(
    request: Request, wanted: objects.JobSubmission, owner: Owner, idempotency_key: str | None
) -> Submitted[JobRow]:
    backend_of(request).disks.admit()
    try:
        body = wanted.model_dump(mode="json", exclude_unset=True)
    except ValueError as error:  # pydantic goes some hundred levels down, json.loads a thousand
        raise InvalidOption("the body is nested too deeply") from error
    digest = hashlib.sha256(canonical_body(body).encode()).hexdigest()
    target = wanted.target if isinstance(wanted.target, str) else json.dumps(wanted.target)
    asked = JobRequest(
        kind=wanted.kind,
        model=wanted.model,
        artifact=wanted.artifact,
        target=target,
        options=compile_options(wanted.options),
        priority=wanted.priority,
        webhook=wanted.webhook,
        records=wanted.records,
        trials=wanted.trials,
        time_s=wanted.time_s,
        name=wanted.name,
    )
    return backend_of(request).jobs.submit(owner, asked, idempotency_key=idempotency_key, body_digest=digest)


@router.get(
    "", response_model=objects.JobPage, responses=responses("invalid-option", "invalid-request"), summary="Your jobs"
)
def list_jobs(
    request: Request,
    owner: Reader,
    state: Annotated[State | None, Query(description="Only those in this state.")] = None,
    kind: Annotated[JobKind | None, Query(description="Only those of this kind.")] = None,
    model: Annotated[str | None, Query(pattern=objects.DIGEST, description="Only those of this model.")] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="At most so many.")] = 50,
    cursor: Annotated[
        str | None, Query(max_length=200, pattern=r"^[\x21-\x7e]+$", description="`next` of the page before.")
    ] = None,
) -> Response:
    """List your jobs, the newest first, in pages. Only `GET /v1/jobs/{id}` has results and the fields of errors."""
    page = backend_of(request).jobs.list(owner, state=state, kind=kind, model=model, limit=limit, cursor=cursor)
    return JSONResponse({"jobs": [row.listed() for row in page.jobs], "next": page.next})


@router.get("/{id}", response_model=objects.Job, responses=responses("job-not-found"), summary="One job")
def get_job(id: JobId, request: Request, owner: Reader) -> Response:
    """Return its state, stage and result."""
    row = backend_of(request).jobs.get(owner, id)
    return JSONResponse(row.to_dict(), headers={"Cache-Control": "no-store"})


@router.delete(
    "/{id}",
    status_code=202,
    response_model=objects.Job,
    responses=responses("job-not-found", "job-ended"),
    summary="Cancel a job",
)
def cancel_job(id: JobId, request: Request, owner: Worker) -> Response:
    """Cancel the job; its processes end within two seconds."""
    return JSONResponse(backend_of(request).jobs.cancel(owner, id).to_dict(), 202)
