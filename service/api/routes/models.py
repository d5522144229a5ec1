"""`/v1/models`: uploaded models, by the digest of their content."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from relaxc.service.api.calls import answer
from relaxc.service.api.forms import model_form
from relaxc.service.api.ids import ModelDigest
from relaxc.service.api.intake import IDENTIFYING, taken_form
from relaxc.service.api.objects import Model, Models
from relaxc.service.api.owners import Compiler, Reader
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.jobs.objects.intake import Sent

__all__ = ["UPLOADED", "router"]

router = APIRouter(prefix="/v1/models", tags=["models"])

_LOCATION = {"Location": {"description": "The model.", "schema": {"type": "string"}}}
UPLOADED: dict[int | str, dict[str, Any]] = {
    200: {"model": Model, "description": "It was there.", "headers": _LOCATION},
    201: {"model": Model, "description": "It is kept.", "headers": _LOCATION},
    **responses(
        *("invalid-option", "model-too-large", "unknown-format", "model-malformed", "model-unsafe"),
        *(
            "compiler-crashed",
            "compiler-timeout",
            "compiler-out-of-memory",
            "compiler-out-of-disk",
            "busy",
            "service-error",
            "store-unwritable",
            "store-unreachable",
            "storage-quota-exceeded",
        ),
    ),
}


@router.post("", status_code=201, responses=UPLOADED, openapi_extra=model_form(), summary="Upload a model")
async def add_model(request: Request, owner: Compiler) -> Response:
    """Upload a model for later jobs, with the same form as `POST /v1/compile`, but without options."""
    models = backend_of(request).models
    async with taken_form(request, owner, fields=()) as (form, upload):
        assert form.model is not None
        add = partial(models.add, owner, Sent(form.model, form.sha256s), name=form.model.name, upload=upload)
        row, is_new = await to_thread.run_sync(add, limiter=IDENTIFYING)
    headers = {"Location": f"/v1/models/{row.digest}"}
    return answer(request, row.to_dict(), 201 if is_new else 200, headers)


@router.get("", response_model=Models, summary="Your models")
def list_models(request: Request, owner: Reader) -> Response:
    """List up to 1000 models, the newest first."""
    return JSONResponse({"models": [row.to_dict() for row in backend_of(request).models.list(owner)]})


@router.get("/{digest}", response_model=Model, responses=responses("model-not-found"), summary="One model")
def get_model(digest: ModelDigest, request: Request, owner: Reader) -> Response:
    """Return what is known of a model before it is compiled."""
    return JSONResponse(backend_of(request).models.get(owner, digest).to_dict())


@router.delete("/{digest}", status_code=204, responses=responses("model-not-found"), summary="Forget a model")
def remove_model(digest: ModelDigest, request: Request, owner: Compiler) -> Response:
    """Delete it from your list; jobs already accepted still run."""
    backend_of(request).models.remove(owner, digest)
    return Response(status_code=204)
