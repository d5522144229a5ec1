"""Where jobs are asked for and asked about: each call checks whose they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from service.jobs.database.rows import EventRow, JobKind, JobPage, JobRequest, JobRow, Owner
from service.jobs.job import State

__all__ = ["Jobs", "Origin", "Submitted"]


class Origin(StrEnum):
    """How a request was answered: from the store, by a job of its own, by an equal one that lives, by the one that the
    same Idempotency-Key made."""

    HIT = "hit"
    MISS = "miss"
    JOINED = "joined"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job that answers a request; a hit's has succeeded already."""

    job: JobRow
    origin: Origin


class Jobs:
    """Every owner's jobs. Methods may be called from any thread; the coroutines from any loop."""

    def submit(
        self, owner: Owner, request: JobRequest, *, idempotency_key: str | None = None, body_digest: str = ""
    ) -> Submitted:
        """The job for `request`, on the disk when this returns.

        `body_digest` is what the idempotency key is bound to. Raises Busy (field `retry_after_s`) when too many wait,
        InvalidOption, InvalidTarget, ModelNotFound, ArtifactNotFound, RecordsNotFound, IdempotencyConflict, and what
        `key_for` raises. Scopes are the caller's to check.
        """
        raise NotImplementedError

    def get(self, owner: Owner, id: str) -> JobRow:
        """Raises JobNotFound, also for another owner's."""
        raise NotImplementedError

    def list(
        self,
        owner: Owner,
        *,
        state: State | None = None,
        kind: JobKind | None = None,
        model: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """The newest first, at most `limit` (1 to 500). Raises InvalidOption for a cursor that is not ours."""
        raise NotImplementedError

    def cancel(self, owner: Owner, id: str) -> JobRow:
        """Ends it, wherever it runs: its processes are gone in under 2 s. Raises JobNotFound, JobEnded."""
        raise NotImplementedError

    def events(self, owner: Owner, id: str, *, after: int = 0, limit: int = 1000) -> tuple[EventRow, ...]:
        """The events numbered over `after`, in order. Raises JobNotFound."""
        raise NotImplementedError

    def stream(self, owner: Owner, id: str, *, after: int = 0) -> AsyncIterator[EventRow]:
        """The events as they come, in order, until the job's last (`EventRow.last`) or the server stops.

        Raises JobNotFound at once, before the first is asked for. Many may listen: the database is asked once.
        """
        raise NotImplementedError

    async def wait(self, owner: Owner, id: str, timeout_s: float | None = None) -> JobRow:
        """The job when it has ended, or as it is after `timeout_s`. Raises JobNotFound, ServiceError at a stop."""
        raise NotImplementedError

    def log(self, owner: Owner, id: str) -> Path | None:
        """The file with what the child printed, also while it prints; None where there is none. Raises JobNotFound."""
        raise NotImplementedError

    def file(self, owner: Owner, id: str, name: str) -> Path:
        """`report.json` or `curve.png` of a finished tuning. Raises JobNotFound."""
        raise NotImplementedError
