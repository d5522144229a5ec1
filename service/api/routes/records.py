"""`/v1/records`: sets of tuning records, by the digest of their text."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from relaxc.service.api.bodies import body_of
from relaxc.service.api.calls import NAME
from relaxc.service.api.conditional import IMMUTABLE, has_it
from relaxc.service.api.disk import on_disk
from relaxc.service.api.ids import RecordsDigest
from relaxc.service.api.objects import RecordSet, RecordSets
from relaxc.service.api.owners import Reader, Tuner
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/records", tags=["records"])

_MEDIA_TYPE = "application/jsonl"
_MAX_BYTES = 16 << 20
_EXAMPLE = '{"rule": "matmul_packed", "workload": "0123456789abcdef", "seconds": 0.00151, "…": "docs/tuning.md"}\n'
_TEXT: dict[str, Any] = {_MEDIA_TYPE: {"schema": {"type": "string"}, "example": _EXAMPLE}}
_LOCATION = {"Location": {"description": "The record set.", "schema": {"type": "string"}}}
_ADDED: dict[int | str, dict[str, Any]] = {
    200: {"model": RecordSet, "description": "It was there.", "headers": _LOCATION},
    201: {"model": RecordSet, "description": "It is kept.", "headers": _LOCATION},
    **responses("invalid-option", "invalid-records", "content-too-large", "invalid-request", "store-unwritable"),
    **responses("store-unreachable"),
    **responses("storage-quota-exceeded"),
}
_GOT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The records, a line each.", "content": _TEXT},
    304: {"description": "The sender has it already."},
    **responses("records-not-found"),
}


@router.post(
    "",
    status_code=201,
    responses=_ADDED,
    openapi_extra={"requestBody": {"required": True, "content": {"text/plain": _TEXT[_MEDIA_TYPE]}}},
    summary="Send tuning records in",
)
async def add_records(request: Request, owner: Tuner, name: Annotated[str, NAME] = "records") -> Response:
    """Keep records as `relaxc records` writes them, to compile with or to start a search from; 16 MiB at most."""
    body_of(request).max_bytes = _MAX_BYTES
    text = await request.body()
    await on_disk(backend_of(request).disks.admit, len(text))
    row, is_new = await on_disk(partial(backend_of(request).records.add, owner, text, name=name))
    return JSONResponse(row.to_dict(), 201 if is_new else 200, headers={"Location": f"/v1/records/{row.digest}"})


@router.get("", response_model=RecordSets, summary="Your record sets")
def list_records(request: Request, owner: Reader) -> Response:
    """List up to 1000 record sets, the newest first."""
    return JSONResponse({"records": [row.to_dict() for row in backend_of(request).records.list(owner)]})


@router.get("/{digest}", response_class=Response, responses=_GOT, summary="One record set")
def get_records(digest: RecordsDigest, request: Request, owner: Reader) -> Response:
    """Return the text of a record set, which never changes."""
    text = backend_of(request).records.read(owner, digest)
    headers = {"ETag": f'"{digest}"', "Cache-Control": IMMUTABLE}
    if has_it(request, digest):
        return Response(status_code=304, headers=headers)
    return Response(text, media_type=_MEDIA_TYPE, headers=headers)


@router.delete("/{digest}", status_code=204, responses=responses("records-not-found"), summary="Forget a record set")
def remove_records(digest: RecordsDigest, request: Request, owner: Tuner) -> Response:
    """Delete it from your list; artifacts compiled with it stay."""
    backend_of(request).records.remove(owner, digest)
    return Response(status_code=204)
