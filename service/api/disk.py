"""Threads of their own for what waits for the disk: a slow one holds up uploads, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

__all__ = ["WRITERS", "on_disk"]

T = TypeVar("T")

WRITERS = CapacityLimiter(16)
"""Bodies that are written, synced or removed at the same time, by all calls together."""


async def on_disk(work: Callable[..., T], *arguments: object) -> T:
    """Do it in one of these threads, and return what it returns; it is not left behind when the call is cancelled."""
    return await to_thread.run_sync(work, *arguments, limiter=WRITERS)
