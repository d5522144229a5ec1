"""One job while it runs on this server: its events, its log, and how it is ended from outside."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from relaxc.service.errors import Cancelled, RelaxcError, StoreUnwritable
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobKind, JobRow
from relaxc.service.jobs.job import State
from relaxc.service.jobs.queue.eventlog import EventLog
from relaxc.service.jobs.queue.files import LOG, blob_of
from relaxc.service.jobs.queue.livelog import LiveLog
from relaxc.service.jobs.queue.trials import TrialLog
from relaxc.service.process.plain import open_plain
from relaxc.service.process.pool import Cancellation

__all__ = ["LOG_BYTES", "Running", "Watch"]

_LOG = logging.getLogger("relaxc.jobs")

Watch = Callable[[JobRow, dict[str, Any]], None]
"""Is told of each event of a job while it runs, and of its state at both ends; it must not fail, nor wait."""

LOG_BYTES = 4 << 20
"""Of a longer log the first and the last half are kept."""


class Running:
    """What the scheduler holds of a job that it started. `memory_bytes` is what the job is expected to take."""

    def __init__(
        self,
        job: JobRow,
        memory_bytes: int,
        database: Database,
        blobs: Blobs,
        tell: Callable[[str], None],
        watch: Watch,
        is_shared: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_shared` says whether other servers may be asked for its log while it runs."""
        self.job = job
        self.memory_bytes = memory_bytes
        self.cancellation = Cancellation()
        self.reason: RelaxcError | None = None
        self.give_back = False
        self.workdir: Path | None = None
        self.events = EventLog(database, job)
        self.trials = TrialLog(database, job)
        self._live_log = LiveLog(database, job, is_shared)
        self._blobs = blobs
        self._tell = tell
        self._watch = watch

    @property
    def tunes(self) -> bool:
        """Whether it is in the lane of tuning."""
        return self.job.kind is JobKind.TUNE

    @property
    def log(self) -> Path | None:
        """Where its process prints to now."""
        return None if self.workdir is None else self.workdir / LOG

    def cancel(self, reason: RelaxcError, *, give_back: bool = False) -> None:
        """End its processes; the job ends with `reason`, or is queued again. What was said first holds."""
        if self.reason is None:
            self.reason, self.give_back = reason, give_back
        self.cancellation.cancel()

    def give_up(self) -> None:
        """End its processes, as the claim on it is over: nothing that it still says is written down."""
        self.cancel(Cancelled("the job has been taken from this server"))

    def take(self, data: dict[str, Any]) -> None:
        """Take an event of its process. Trials are no part of the job's story, and a tuning's alone."""
        if data.get("event") != "trial":
            self._watch(self.job, data)
            if self.events.take(data):
                self._tell(self.job.id)
        elif self.tunes:
            self.trials.take(data)
        self._stop_if_lost()

    def is_in(self, state: State, error: dict[str, Any] | None = None) -> None:
        """Tell who watches that it has begun to run, that it is queued again, or how it ended."""
        self._watch(self.job, {"event": "state", "state": state, "error": error})

    def flush(self) -> None:
        """Write what it has told."""
        self.trials.flush()
        if self.events.flush():
            self._tell(self.job.id)
        if (log := self.log) is not None:
            self._live_log.flush(log)
        self._stop_if_lost()

    @property
    def lost(self) -> bool:
        """Whether something that it told was refused, as the claim is over."""
        return self.events.lost or self.trials.lost

    def _stop_if_lost(self) -> None:
        if self.lost:
            self.give_up()

    @contextmanager
    def at(self, workdir: Path) -> Iterator[None]:
        """While it works in this folder; at the end its log is kept."""
        self.workdir = workdir
        try:
            yield
        finally:
            self._keep_log(workdir / LOG)
            self.workdir = None

    def _keep_log(self, path: Path) -> None:
        file = open_plain(path)
        if file is None:
            return
        staged = self._blobs.local.staged()
        try:
            with file:
                _copy_ends(file, staged)
            self._blobs.put(blob_of(self.job.claim, LOG), staged)
        except (OSError, StoreUnwritable) as error:
            _LOG.warning("the log of job %s is lost: %s", self.job.id, error)
        finally:
            staged.unlink(missing_ok=True)


def _copy_ends(file: BinaryIO, target: Path) -> None:
    with target.open("wb") as copy:
        size = os.fstat(file.fileno()).st_size
        if size <= LOG_BYTES:
            shutil.copyfileobj(file, copy)
            return
        copy.write(file.read(LOG_BYTES // 2))
        copy.write(f"\n… {size - LOG_BYTES} bytes left out …\n".encode())
        file.seek(size - LOG_BYTES // 2)
        copy.write(file.read(LOG_BYTES // 2))
