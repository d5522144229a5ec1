"""`POST /v1/compile`: a model in the body, the compiled library in the answer, or the job that makes it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import FileResponse

from relaxc.service.api.calls import answer
from relaxc.service.api.files import artifact_response
from relaxc.service.api.forms import compile_form
from relaxc.service.api.intake import IDENTIFYING, taken_form
from relaxc.service.api.options import parsed_options
from relaxc.service.api.owners import Compiler
from relaxc.service.api.prefer import preference_of
from relaxc.service.api.problems import problem, responses
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.api.routes.jobs import ACCEPTED, CACHE_STATUS
from relaxc.service.api.uploads import FIELDS, Upload
from relaxc.service.errors import RelaxcError
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.rows import JobKind, JobRequest, JobRow, Owner
from relaxc.service.jobs.job import Submitted
from relaxc.service.jobs.objects.intake import Sent
from relaxc.service.lowering.target import resolve

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["compile"])

_APPLIED = {"Preference-Applied": {"description": "RFC 7240.", "schema": {"type": "string"}}}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The compiled library. Cache-Status tells whether it was compiled for this request.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            "ETag": {"description": "The SHA-256 of the file, quoted.", "schema": {"type": "string"}},
            "Link": {"description": "describedby: the manifest.", "schema": {"type": "string"}},
            "Cache-Status": {"description": "RFC 9211.", "schema": {"type": "string"}},
            "Relaxc-Job": {"description": "The job that made it.", "schema": {"type": "string"}},
            **_APPLIED,
        },
    },
    202: {**ACCEPTED, "headers": ACCEPTED["headers"] | _APPLIED},
    **responses(
        *("invalid-option", "invalid-target", "invalid-shape"),
        *("unknown-format", "model-malformed", "model-too-large", "model-unsafe", "unsupported-model"),
        *("compile-failed", "compiler-crashed", "compiler-timeout", "compiler-out-of-memory", "compiler-out-of-disk"),
        "tool-missing",
        *(
            "server-died",
            "cancelled",
            "verification-failed",
            "busy",
            "service-error",
            "store-unwritable",
            "store-unreachable",
        ),
        *("model-not-found", "artifact-not-found", "artifact-corrupt", "not-tuned"),
        *("quota-exceeded", "storage-quota-exceeded"),
    ),
}


@router.post(
    "/compile",
    response_class=FileResponse,
    responses=_ANSWERS,
    openapi_extra=compile_form(),
    summary="Compile a model",
)
async def compile_model(
    request: Request,
    owner: Compiler,
    prefer: Annotated[
        str, Header(description="wait=SECONDS, or respond-async.", examples=["wait=10", "respond-async"])
    ] = "",
) -> Response:
    """Compile the uploaded model, or find it compiled, and send the `.so`.

    Equal requests are compiled once. If you disconnect, the compile continues and its result is kept: the same request
    finds it later, or joins it. With `Prefer: wait=10` the answer is the job (202) if ten seconds are not enough; with
    `Prefer: respond-async` it is the job at once.
    """
    backend, preference = backend_of(request), preference_of(prefer)
    async with taken_form(request, owner, FIELDS) as (form, upload):
        submitted = await to_thread.run_sync(_submit, backend, owner, form, upload, limiter=IDENTIFYING)
    assert form.model is not None
    job = submitted.job
    if not job.ended and preference.wait_s != 0:
        job = await backend.jobs.wait(owner, job.id, preference.wait_s)
    headers = {"Cache-Status": CACHE_STATUS[submitted.origin], **preference.headers}
    if not job.ended or preference.wait_s == 0:
        return answer(request, job.to_dict(), 202, headers | {"Location": f"/v1/jobs/{job.id}"})
    return await _result(backend, owner, job, request, f"{form.model.stem}.so", headers)


def _submit(backend: Backend, owner: Owner, form: Upload, upload: str) -> Submitted[JobRow]:
    options = parsed_options(form.fields.get("options", "{}"))
    target = form.fields.get("target", "auto")
    resolve(target)  # refused before the model is looked at
    assert form.model is not None
    model, _ = backend.models.add(owner, Sent(form.model, form.sha256s), name=form.model.name, upload=upload)
    asked = JobRequest(JobKind.COMPILE, model.digest, target=target, options=options, name=form.model.name)
    return backend.jobs.submit(owner, asked)


async def _result(
    backend: Backend, owner: Owner, job: JobRow, request: Request, filename: str, headers: dict[str, str]
) -> Response:
    headers = headers | {"Relaxc-Job": f"/v1/jobs/{job.id}"}
    if job.error is not None:
        refused = problem(RelaxcError.from_dict(job.error))
        refused.headers.update(headers)
        return refused
    assert job.artifact is not None
    opened = await to_thread.run_sync(partial(backend.artifacts.open, owner, job.artifact))
    return artifact_response(opened, request, filename=filename, headers=headers | {"Cache-Control": "no-store"})
