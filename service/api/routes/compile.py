"""`POST /v1/compile`: a model in the body, the compiled library in the answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from starlette.requests import ClientDisconnect

from service.api.problems import problem, responses
from service.api.refusal import Refusal
from service.api.routes.artifacts import artifact_response
from service.api.routes.backend import backend_of
from service.api.uploads import OVERHEAD_BYTES, Upload, receive
from service.config import settings
from service.errors import InvalidOption, ModelTooLarge, RelaxcError, StoreUnwritable
from service.jobs.backend import Backend
from service.jobs.intake import refer
from service.jobs.job import Job
from service.jobs.queue import Origin, Submission
from service.lowering.target import resolve
from service.request import CompileOptions, CompileRequest

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["compile"])

# Uploads that are identified at the same time: each may take the memory of a parsed model.
_INTAKE = CapacityLimiter(4)

_CACHE_STATUS = {  # RFC 9211
    Origin.HIT: "relaxc; hit",
    Origin.MISS: "relaxc; fwd=miss; stored",
    Origin.JOINED: "relaxc; fwd=miss; stored; collapsed",
}

_OPTIONS_EXAMPLE = '{"precision": "fp32", "opt_level": 2, "shapes": {"x": [1, 3, 224, 224]}, "verify": true, "seed": 0}'
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["model"],
                    "properties": {
                        "model": {
                            "type": "string",
                            "format": "binary",
                            "description": "An ONNX file, or a .pt2 of torch.export.save.",
                        },
                        "data": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "ONNX external data, each under its plain file name.",
                        },
                        "options": {
                            "type": "string",
                            "description": "JSON with any of precision, opt_level, shapes, verify, seed.",
                            "example": _OPTIONS_EXAMPLE,
                        },
                        "target": {
                            "type": "string",
                            "description": "auto, a name that /v1/targets lists, or target JSON.",
                            "default": "auto",
                            "example": "x86-64-v4",
                        },
                    },
                },
                "encoding": {"model": {"contentType": "application/octet-stream"}},
            }
        },
    }
}
_LIBRARY: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The compiled library. Cache-Status tells whether it was compiled for this request.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            "ETag": {"description": "The SHA-256 of the file, quoted.", "schema": {"type": "string"}},
            "Link": {"description": "describedby: the manifest.", "schema": {"type": "string"}},
            "Cache-Status": {"description": "RFC 9211.", "schema": {"type": "string"}},
        },
    }
}
_ERRORS = responses(
    *("invalid-option", "invalid-target", "invalid-shape"),
    *("unknown-format", "model-malformed", "model-too-large", "model-unsafe", "unsupported-model"),
    *("compile-failed", "compiler-crashed", "compiler-timeout", "compiler-out-of-memory", "tool-missing", "cancelled"),
    *("verification-failed", "busy", "service-error", "store-unwritable"),
)


@router.post(
    "/compile",
    response_class=FileResponse,
    responses={**_LIBRARY, **_ERRORS},
    openapi_extra=_BODY,
    summary="Compile a model",
)
async def compile_model(request: Request) -> Response:
    """Compiles the uploaded model, or finds it compiled, and sends the `.so`.

    Equal requests are compiled once. When the sender goes away the compile goes on, and its result is kept: asking
    again finds it, or joins it.
    """
    backend = backend_of(request)
    folder = await to_thread.run_sync(backend.workspace.folder, "upload")
    body = _Body(request)
    try:
        upload = await _receive(request, body, folder)
    except BaseException as error:
        await to_thread.run_sync(backend.workspace.remove, folder)
        if isinstance(error, RelaxcError):
            return problem(error, JSONResponse if body.whole else Refusal)
        if isinstance(error, OSError):
            full = StoreUnwritable(f"the upload cannot be kept: {error.strerror}")
            return problem(full, JSONResponse if body.whole else Refusal)
        if isinstance(error, ClientDisconnect):
            return Response(status_code=400)  # nobody reads it
        raise
    submission = await to_thread.run_sync(_submit, backend, upload, limiter=_INTAKE)
    return await _answer(backend, submission, upload, request)


class _Body:
    """The chunks of a request's body, and whether all have come."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.whole = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._request.stream():
            yield chunk
        self.whole = True


async def _receive(request: Request, body: _Body, folder: Path) -> Upload:
    limit = settings().max_model_bytes
    if int(request.headers.get("content-length", 0)) > limit + OVERHEAD_BYTES:
        raise ModelTooLarge(f"the upload is over RELAXC_MAX_MODEL_BYTES, {limit} bytes", limit_bytes=limit)
    return await receive(aiter(body), request.headers.get("content-type", ""), folder, limit)


def _submit(backend: Backend, upload: Upload) -> Submission:
    release = partial(backend.workspace.remove, upload.folder)
    assert upload.model is not None
    try:
        options = _options(upload.fields.get("options", "{}"))
        target = resolve(upload.fields.get("target", "auto"))
        model = refer(backend.pool, backend.workspace, upload.model, upload.sha256)
        request = CompileRequest(model, target, options)
    except BaseException:
        release()
        raise
    return backend.queue.submit(request, release=release, name=upload.model.name)


def _options(text: str) -> CompileOptions:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"the part options is not JSON: {error}", option="options") from error
    if not isinstance(data, dict):
        raise InvalidOption(f"the part options must be a JSON object, not {type(data).__name__}", option="options")
    if data.get("plugins"):
        raise InvalidOption(
            "plugins are code, and are not taken over HTTP",
            option="plugins",
            remedy="Compile with `relaxc compile --plugin FILE` on a machine of yours.",
        )
    return CompileOptions.from_dict(data)


async def _end_of(job: Job) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has gone
            loop.call_soon_threadsafe(ended.set)

    job.done.add_done_callback(tell)
    await ended.wait()


async def _answer(backend: Backend, submission: Submission, upload: Upload, request: Request) -> Response:
    job = submission.job
    await _end_of(job)
    if job.error is not None:
        return problem(job.error)
    assert job.artifact is not None
    opened = await to_thread.run_sync(backend.store.open, job.artifact.digest)
    assert upload.model is not None
    headers = {"Cache-Status": _CACHE_STATUS[submission.origin], "Cache-Control": "no-store"}
    return artifact_response(opened, request, filename=f"{upload.model.stem}.so", headers=headers)
