"""What compiles for this process alone, opened and closed as one: the store, the workers, the queue in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from relaxc.service.artifact.store import Store
from relaxc.service.config import settings
from relaxc.service.jobs.local.queue import CompileQueue
from relaxc.service.jobs.once import COMPILE_ENTRY
from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Pool
from relaxc.service.process.task import Flavour
from relaxc.service.process.workspace import Workspace

__all__ = ["LocalBackend"]


class LocalBackend:
    """What the command line and the library have of us. Opening it starts no worker; `warm` or a request does."""

    def __init__(
        self,
        cache_dir: Path | None = None,
        *,
        workers: int | None = None,
        queue_max: int | None = None,
        limits: Limits | None = None,
        entry: str = COMPILE_ENTRY,
    ) -> None:
        """What is None is as the settings say; `entry` is what a child runs."""
        root = cache_dir or settings().cache_dir
        self.store = Store(root, settings().cache_max_bytes)
        self.workspace = Workspace(root / "jobs")
        self.pool = Pool()
        self.queue = CompileQueue(
            self.store, self.pool, self.workspace, workers=workers, queue_max=queue_max, limits=limits, entry=entry
        )

    def warm(self) -> None:
        """Start the workers of both flavours, without waiting for them."""
        self.pool.warm(*Flavour)

    def stop(self) -> None:
        """End what runs, with an error for who waits for it, and take nothing more; no process of ours is left."""
        self.queue.stop()
        self.pool.close()  # wakes the jobs that wait for a worker's imports
        self.queue.close()

    def close(self) -> None:
        """Stop, and remove the folders. May be called twice."""
        self.stop()
        self.workspace.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
