"""The number of jobs for who asks whether the server lives: at once, whatever the database does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from anyio import to_thread

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.backend import Counts

__all__ = ["Counting"]

_PATIENCE_S = 1.0


class Counting:
    """Counts of one application, at most one at a time: a database that hangs holds one thread, not one a request."""

    def __init__(self) -> None:
        self._asked: asyncio.Task[Counts | None] | None = None

    async def now(self, count: Callable[[], Counts]) -> Counts | None:
        """Return what `count` says; None where it raises ServiceError, or has not answered within a second."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(to_thread.run_sync(partial(_tried, count)))
        done, _ = await asyncio.wait({self._asked}, timeout=_PATIENCE_S)
        return self._asked.result() if done else None


def _tried(count: Callable[[], Counts]) -> Counts | None:
    try:
        return count()
    except ServiceError:
        return None
