"""A form with a model, on the server's disk for as long as a call works on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CancelScope, CapacityLimiter, to_thread
from fastapi import Request

from service.api.bodies import body_of
from service.api.routes.backend import backend_of
from service.api.uploads import OVERHEAD_BYTES, Upload, receive
from service.config import settings
from service.errors import ModelTooLarge, StoreUnwritable

__all__ = ["IDENTIFYING", "taken_form"]

IDENTIFYING = CapacityLimiter(4)
"""Uploads that are identified at the same time: each may take the memory of a parsed model."""


@asynccontextmanager
async def taken_form(request: Request, fields: tuple[str, ...]) -> AsyncIterator[Upload]:
    """Give the form in the body, streamed into a folder that is gone afterwards, whatever was moved out of it.

    `fields` are the parts it may have beside `model` and `data`. Raise what `receive` raises, and StoreUnwritable.
    """
    backend, body, limit = backend_of(request), body_of(request), settings().max_model_bytes
    workspace = backend.workspace
    if (body.announced_bytes or 0) > limit + OVERHEAD_BYTES:
        raise ModelTooLarge(f"the upload is over RELAXC_MAX_MODEL_BYTES, {limit} bytes", limit_bytes=limit)
    await to_thread.run_sync(backend.disks.admit, body.announced_bytes or 0)
    body.max_bytes = None  # `receive` counts
    folder = await to_thread.run_sync(workspace.folder, "upload")
    try:
        try:
            kind, admit = request.headers.get("content-type", ""), backend.disks.admit
            upload = await receive(request.stream(), kind, folder, limit, fields, admit)
        except OSError as error:
            raise StoreUnwritable(f"the upload cannot be kept: {error.strerror}") from error
        yield upload
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(workspace.remove, folder)
