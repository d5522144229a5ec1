"""Everything behind the API, opened and closed as one: database, blobs, store, scheduler, workers, webhooks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.config import settings
from service.jobs.artifacts import Artifacts
from service.jobs.blobs.mirrored import open_blobs
from service.jobs.database.engine import Database
from service.jobs.desk import Jobs
from service.jobs.limits import Limits
from service.jobs.local_backend import LocalBackend
from service.jobs.models import Models
from service.jobs.queue import COMPILE_ENTRY
from service.jobs.recordsets import RecordSets
from service.jobs.uploads import Uploads

__all__ = ["Backend", "Counts"]


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs run and wait, over all servers of the database."""

    running: int
    waiting: int


class Backend(LocalBackend):
    """What a route gets. Every call of its parts may be made from any thread.

    Opening it migrates the database, takes up what a dead server left, and starts the scheduler.
    """

    def __init__(
        self,
        cache_dir: Path | None = None,
        *,
        workers: int | None = None,
        queue_max: int | None = None,
        limits: Limits | None = None,
        entry: str = COMPILE_ENTRY,
        database_url: str | None = None,
        blobs_url: str | None = None,
    ) -> None:
        """What is None is as the settings say; `entry` is what a child of a `compile` job runs."""
        super().__init__(cache_dir, workers=workers, queue_max=queue_max, limits=limits, entry=entry)
        root = self.store.root
        self.database = Database(database_url or settings().database_url or f"sqlite:///{root / 'service.sqlite3'}")
        self.blobs = open_blobs(
            settings().blobs_url if blobs_url is None else blobs_url, root / "blobs", settings().s3_endpoint_url or None
        )
        self.models = Models(self.database, self.blobs, self.pool, self.workspace)
        self.uploads = Uploads(self.blobs.local.root / "uploads", self.models, self.workspace)
        self.jobs = Jobs()
        self.artifacts = Artifacts(self.database, self.blobs, self.store, self.workspace)
        self.records = RecordSets(self.database, self.blobs)

    def close(self) -> None:
        super().close()
        self.database.close()
        self.blobs.close()

    def counts(self) -> Counts:
        """How many jobs run and wait."""
        return Counts(*self.queue.counts())

    def ready(self) -> list[str]:
        """Why requests cannot be taken now; empty when they can."""
        return []
