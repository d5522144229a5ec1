"""Where jobs are asked for and asked about: each call checks whose they are."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import BinaryIO

from relaxc.service.errors import Cancelled, InvalidOption, JobEnded, JobNotFound, ServiceError
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database import events, job_logs, jobs, models, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import EventRow, JobKind, JobPage, JobRequest, JobRow, Owner
from relaxc.service.jobs.job import State, Submitted
from relaxc.service.jobs.queue.files import LOG, TUNE_FILES, blob_of, latest
from relaxc.service.jobs.queue.hub import Hub
from relaxc.service.jobs.queue.running import Running
from relaxc.service.jobs.queue.submission import Submission
from relaxc.service.process.plain import open_plain

__all__ = ["Jobs"]

_MAX_PAGE = 500
_MAX_EVENTS = 10_000
_PAGE = 20
"""How many past events a stream holds at once: each has up to 64 KiB, and a listener may be slow."""


class Jobs:
    """Every owner's jobs. Methods may be called from any thread; the coroutines from any loop."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        hub: Hub,
        submission: Submission,
        changed: Callable[[], None],
        running: Callable[[str], Running | None],
        settle: Callable[[], None],
    ) -> None:
        """`changed` is called when the scheduler has something to do, `settle` when a job has ended that nobody ran;
        `running` finds a job that runs here."""
        self._database = database
        self._blobs = blobs
        self._hub = hub
        self._submission = submission
        self._changed = changed
        self._running = running
        self._settle = settle

    def submit(
        self, owner: Owner, request: JobRequest, *, idempotency_key: str | None = None, body_digest: str = ""
    ) -> Submitted[JobRow]:
        """Return the job for `request`, on the disk when this returns.

        `body_digest` is what the idempotency key is bound to. Raise Busy (field `retry_after_s`) when too many wait,
        InvalidOption, InvalidTarget, ModelNotFound, ArtifactNotFound, RecordsNotFound, IdempotencyConflict, and what
        `key_for` raises. Scopes are the caller's to check.
        """
        submitted = self._submission(owner, request, idempotency_key, body_digest)
        self._changed()
        return submitted

    def get(self, owner: Owner, id: str) -> JobRow:
        """Return the owner's job. Raise JobNotFound, also for another owner's."""
        with self._database.read() as connection:
            row = jobs.find(connection, id, None if owner.admin else owner.id) if "\0" not in id else None
        if row is None:
            raise JobNotFound(f"there is no job {id[:80]}")
        return row

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
        """Return jobs, the newest first, at most `limit` (1 to 500). Raise InvalidOption for a foreign cursor."""
        if not 1 <= limit <= _MAX_PAGE:
            raise InvalidOption(f"limit is 1 to {_MAX_PAGE}, not {limit}", option="limit")
        whose = None if owner.admin else owner.id
        with self._database.read() as connection:
            model = model if model is None else models.meant(connection, whose, model)
            return jobs.page(connection, whose, state=state, kind=kind, model=model, limit=limit, cursor=cursor)

    def cancel(self, owner: Owner, id: str) -> JobRow:
        """End it, wherever it runs: its processes are gone in under 2 s. Raise JobNotFound, JobEnded."""
        job, reason = self.get(owner, id), Cancelled("the job was cancelled")
        with self._database.begin() as connection:
            found = transitions.stop(connection, id, reason)
        if found is None:
            raise JobEnded(f"job {id} has {job.state if job.ended else 'ended'} already", state=job.state.value)
        running = self._running(id)
        if running is not None and found is State.RUNNING:
            running.cancel(reason)
        if job.kind is JobKind.TUNE and found is State.QUEUED:
            self._settle()
        self._hub.notify(id)
        self._changed()
        return self.get(owner, id)

    def events(self, owner: Owner, id: str, *, after: int = 0, limit: int = 1000) -> tuple[EventRow, ...]:
        """Return the events numbered over `after`, in order. Raise JobNotFound."""
        self.get(owner, id)
        with self._database.read() as connection:
            return events.read(connection, id, after, min(limit, _MAX_EVENTS))

    def stream(self, owner: Owner, id: str, *, after: int = 0) -> AsyncGenerator[EventRow, None]:
        """Yield the events as they come, in order, until the job's last (`EventRow.last`) or the server stops.

        Raise JobNotFound at once, before the first is asked for. What is past is read page by page; of what comes many
        may be told, and the database is asked once.
        """
        self.get(owner, id)
        return self._stream(id, after)

    async def wait(self, owner: Owner, id: str, timeout_s: float | None = None) -> JobRow:
        """Return the ended job, or as it is after `timeout_s`. Raise JobNotFound, or ServiceError at a stop."""
        job = await asyncio.to_thread(self.get, owner, id)
        if not job.ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._last_event(id, job.events)
            job = await asyncio.to_thread(self.get, owner, id)
        return job

    async def _last_event(self, id: str, after: int) -> None:
        async with contextlib.aclosing(self._stream(id, after)) as told:
            async for event in told:
                if event.last:
                    return
        raise ServiceError("the service is shutting down; the job goes on when it is back", job=id)

    async def _stream(self, id: str, after: int) -> AsyncGenerator[EventRow, None]:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(changed.set)

        while past := await asyncio.to_thread(self._page, id, after):
            for event in past:
                yield event
                if event.last:
                    return
            after = past[-1].seq
        subscription = self._hub.subscribe(id, after, wake)
        try:
            while True:
                changed.clear()
                stopped = subscription.stopped
                for event in subscription.take():
                    yield event
                    if event.last:
                        return
                if stopped:
                    return
                await changed.wait()
        finally:
            subscription.close()

    def _page(self, id: str, after: int) -> tuple[EventRow, ...]:
        with self._database.read() as connection:
            return events.read(connection, id, after, _PAGE)

    def log(self, owner: Owner, id: str) -> BinaryIO | None:
        """Return what the child printed, even while it prints, opened; None if there is nothing. Raise JobNotFound."""
        job = self.get(owner, id)
        running = self._running(id)
        live = running.log if running is not None else None
        if live is not None and (file := open_plain(live)) is not None:
            return file
        if job.state is State.RUNNING and running is None and (told := self._told_log(id)):
            return told
        kept = latest(self._blobs, job.claim, LOG)
        return None if kept is None else open_plain(kept)

    def _told_log(self, id: str) -> BinaryIO | None:
        """What the job has printed by now elsewhere."""
        with self._database.read() as connection:
            printed = job_logs.read(connection, id)
        if not printed:
            return None
        file = tempfile.TemporaryFile()  # noqa: SIM115  # who sends it closes it
        file.write(printed)
        file.seek(0)
        return file

    def file(self, owner: Owner, id: str, name: str) -> Path:
        """Return `report.json`, `curve.svg` or an older `curve.png` of a finished tuning. Raise JobNotFound."""
        job = self.get(owner, id)
        path = self._blobs.find(blob_of(job.claim, name)) if name in TUNE_FILES else None
        if path is None:
            raise JobNotFound(f"job {id} has no {name}", remedy="A `tune` job that has succeeded has one.")
        return path
