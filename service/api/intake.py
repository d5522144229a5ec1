"""A form with a model, on the server's disk for as long as a call works on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import CancelScope, CapacityLimiter, to_thread
from fastapi import Request

from relaxc.service import machine
from relaxc.service.api.bodies import body_of
from relaxc.service.api.disk import on_disk
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.api.uploads import OVERHEAD_BYTES, Upload, receive
from relaxc.service.config import settings
from relaxc.service.errors import ModelTooLarge, StorageQuotaExceeded, StoreUnwritable
from relaxc.service.jobs.database.rows import Owner

__all__ = ["IDENTIFYING", "taken_form"]

IDENTIFYING = CapacityLimiter(max(16, 2 * machine.processors()))
"""Uploads that are identified at the same time, where the scheduler's budget has the memory for so many."""


@asynccontextmanager
async def taken_form(request: Request, owner: Owner, fields: tuple[str, ...]) -> AsyncIterator[tuple[Upload, str]]:
    """Give the form in the body, streamed into a folder that is gone afterwards, whatever was moved out of it, and the
    name of the upload that keeps room for it.

    `fields` are the parts it may have beside `model` and `data`. Raise what `receive` raises, StoreUnwritable, and
    StorageQuotaExceeded, before the body is read where it says how large it is.
    """
    backend, body, limit = backend_of(request), body_of(request), settings().max_model_bytes
    workspace = backend.workspace
    if (body.announced_bytes or 0) > limit + OVERHEAD_BYTES:
        raise ModelTooLarge(f"the upload is over RELAXC_MAX_MODEL_BYTES, {limit} bytes", limit_bytes=limit)
    await on_disk(backend.disks.admit, body.announced_bytes or 0)
    body.max_bytes = None  # `receive` counts
    announced = None if body.announced_bytes is None else max(0, body.announced_bytes - OVERHEAD_BYTES)
    folder = await on_disk(workspace.folder, "upload")
    room = backend.allowance.room(owner, announced, limit)
    try:
        name, most = await to_thread.run_sync(room.__enter__)
        try:
            yield await _received(request, folder, most, fields), name
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(room.__exit__, None, None, None)
    finally:
        with CancelScope(shield=True):
            await on_disk(workspace.remove, folder)


async def _received(request: Request, folder: Path, most: int, fields: tuple[str, ...]) -> Upload:
    try:
        kind, admit = request.headers.get("content-type", ""), backend_of(request).disks.admit
        return await receive(request.stream(), kind, folder, most, fields, admit)
    except OSError as error:
        raise StoreUnwritable(f"the upload cannot be kept: {error.strerror}") from error
    except ModelTooLarge as error:
        if most == settings().max_model_bytes:
            raise
        raise StorageQuotaExceeded(
            f"the upload is larger than the {most} bytes that its owner has left", quota="bytes", left=most
        ) from error
