"""`/v1/uploads/{sha256}`: a model in one piece or in parts, gone on with after any interruption."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from relaxc.service.api.bodies import body_of
from relaxc.service.api.calls import NAME, answer
from relaxc.service.api.disk import on_disk
from relaxc.service.api.ids import UploadDigest
from relaxc.service.api.intake import IDENTIFYING
from relaxc.service.api.objects import BegunUploads, UploadProgress
from relaxc.service.api.owners import Compiler
from relaxc.service.api.problems import responses
from relaxc.service.api.ranges import Span, span_of
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.api.routes.models import UPLOADED
from relaxc.service.api.uploads import pump
from relaxc.service.errors import InvalidOption, ModelNotFound
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.rows import ModelRow, Owner
from relaxc.service.jobs.objects.part import UploadState

__all__ = ["router"]

router = APIRouter(prefix="/v1/uploads", tags=["models"])

_OFFSET = {
    "Upload-Offset": {"description": "The byte to go on with.", "schema": {"type": "integer"}},
    "Upload-Length": {"description": "The bytes of the whole, once known.", "schema": {"type": "integer"}},
}
_PUT: dict[int | str, dict[str, Any]] = {
    **UPLOADED,
    202: {"model": UploadProgress, "description": "It came, and more is to come.", "headers": _OFFSET},
    **responses("upload-conflict"),
}
_PUT[422] = responses("digest-mismatch", "model-malformed", "model-unsafe")[422]
_HEAD: dict[int | str, dict[str, Any]] = {
    200: {"description": "How much has come; Location where the model is complete.", "headers": _OFFSET},
    **responses("invalid-option"),
}
_DROPPED = responses("invalid-option", "upload-conflict", "store-unwritable")
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.put("/{sha256}", status_code=201, responses=_PUT, openapi_extra=_BODY, summary="Upload a model by its digest")
async def put_upload(
    sha256: UploadDigest,
    request: Request,
    owner: Compiler,
    name: Annotated[str, NAME] = "model",
    content_range: Annotated[
        str | None, Header(description="bytes FIRST-LAST/TOTAL of a part.", examples=["bytes 0-1048575/4194304"])
    ] = None,
) -> Response:
    """Send a model file, whole or in parts that continue at `Upload-Offset`; the last part completes the model.

    After a broken connection, what has arrived is kept for a while, so that you can continue.
    """
    backend, body = backend_of(request), body_of(request)
    span = span_of(content_range, body.announced_bytes)
    here = await to_thread.run_sync(_standing, backend, owner, sha256)
    if isinstance(here, ModelRow):
        return answer(request, here.to_dict(), 200, {"Location": f"/v1/models/{here.digest}"})
    if here is None or not here.complete:  # a complete one was cut off while it was identified
        body.max_bytes = None  # the span bounds it
        here = await _keep(backend, owner, sha256, span, request)
    if not here.complete:
        progress = {"sha256": sha256, "offset": here.offset, "total": here.total}
        return answer(request, progress, 202, _headers(here.offset, here.total))
    await on_disk(backend.disks.admit)
    finish = partial(backend.uploads.finish, owner, sha256, name=name)
    row, is_new = await to_thread.run_sync(finish, limiter=IDENTIFYING)
    return answer(request, row.to_dict(), 201 if is_new else 200, {"Location": f"/v1/models/{row.digest}"})


@router.head("/{sha256}", response_class=Response, responses=_HEAD, summary="How much of an upload has come")
def head_upload(
    sha256: UploadDigest, request: Request, owner: Compiler, name: Annotated[str, NAME] = "model"
) -> Response:
    """Return in `Upload-Offset` how much has arrived: 0 for nothing, the file's size for a complete model.

    `name` is accepted, as in a PUT of the same address, and ignored.
    """
    here = _standing(backend_of(request), owner, sha256)
    if isinstance(here, ModelRow):
        complete = _headers(here.size_bytes, here.size_bytes) | {"Location": f"/v1/models/{here.digest}"}
        return Response(headers=complete)
    return Response(headers=_headers(here.offset, here.total) if here else {"Upload-Offset": "0"})


@router.get("", response_model=BegunUploads, summary="Your uploads that are on their way")
def list_uploads(request: Request, owner: Compiler) -> Response:
    """List up to 1000 unfinished uploads, the newest first. Each counts against the quota with its full size."""
    rows = backend_of(request).allowance.uploads(owner.id)
    return JSONResponse({"uploads": [row.to_dict() for row in rows]}, headers={"Cache-Control": "no-store"})


@router.delete("/{sha256}", status_code=204, responses=_DROPPED, summary="Drop an upload")
def drop_upload(sha256: UploadDigest, request: Request, owner: Compiler) -> Response:
    """Delete what has arrived of an unfinished upload, and free its space. A complete model stays."""
    backend_of(request).uploads.remove(owner, sha256)
    return Response(status_code=204)


def _standing(backend: Backend, owner: Owner, sha256: str) -> ModelRow | UploadState | None:
    """The model that is this one file, as no alias or model of several files is, if it is whole; or what has come."""
    try:
        row = backend.models.get(owner, sha256)
    except ModelNotFound:
        return backend.uploads.state(owner, sha256)
    is_the_file = row.digest == sha256 and len(row.files) == 1 and backend.models.is_whole(sha256)
    return row if is_the_file else backend.uploads.state(owner, sha256)


def _headers(offset: int, total: int) -> dict[str, str]:
    return {"Upload-Offset": str(offset), "Upload-Length": str(total), "Cache-Control": "no-store"}


async def _keep(backend: Backend, owner: Owner, sha256: str, span: Span, request: Request) -> UploadState:
    """Writes what comes, also what came before the sender broke off."""
    chunks, admit = _Chunks(request, span.size), backend.disks.admit
    part = await on_disk(partial(backend.uploads.open, owner, sha256, offset=span.offset, total=span.total))

    def write(data: bytes) -> None:
        admit(len(data))
        part.write(data)

    with part:
        await on_disk(admit, span.size)
        await pump(aiter(chunks), write)
    if chunks.broken is not None:
        raise chunks.broken
    return part.state


class _Chunks:
    """The body, at most `size` bytes of it; how it broke off is told afterwards, so that what came can be kept."""

    def __init__(self, request: Request, size: int) -> None:
        self._request = request
        self._left = size
        self.broken: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._request.stream():
                self._left -= len(chunk)
                if self._left < 0:
                    self.broken = InvalidOption("the body is longer than its Content-Range")
                    return
                yield chunk
        except (ClientDisconnect, HTTPException) as error:
            self.broken = error
