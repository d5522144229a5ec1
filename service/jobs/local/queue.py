"""Requests become artifacts: looked up, joined with equal ones, compiled in a child, put into the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from relaxc.service.artifact.entry import Entry
from relaxc.service.artifact.key import Key, key_for
from relaxc.service.artifact.store import Store
from relaxc.service.compiler import places_read
from relaxc.service.config import settings
from relaxc.service.errors import Busy, ServiceError
from relaxc.service.jobs.job import Job, Origin, State, Submitted
from relaxc.service.jobs.job_error import job_error
from relaxc.service.jobs.once import COMPILE_ENTRY, Ask, CompileOnce
from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Pool
from relaxc.service.process.sandbox.confinement import Confinement, folders_of
from relaxc.service.process.workspace import Workspace
from relaxc.service.request import CompileRequest

__all__ = ["CompileQueue"]


class CompileQueue:
    """Takes requests from any thread, and runs at most `workers` compiles at a time.

    `entry` is what a child runs (docs/stages.md says what it must leave); tests put other things there.
    """

    def __init__(
        self,
        store: Store,
        pool: Pool,
        workspace: Workspace,
        *,
        workers: int | None = None,
        queue_max: int | None = None,
        limits: Limits | None = None,
        entry: str = COMPILE_ENTRY,
    ) -> None:
        self.store = store
        self._compile = CompileOnce(store, pool, workspace, limits or Limits.of_settings(), entry)
        self._queue_max = settings().queue_max if queue_max is None else queue_max
        self._threads = ThreadPoolExecutor(workers or max(1, settings().workers), thread_name_prefix="compile")
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._closed = False

    def submit(
        self,
        request: CompileRequest,
        *,
        release: Callable[[], None] = lambda: None,
        dump_dir: Path | None = None,
        name: str | None = None,
        force: bool = False,
        finished: Callable[[Sequence[Path]], None] = lambda files: None,
    ) -> Submitted[Job]:
        """Return the job for `request`. With `dump_dir`, for the sake of the dump, or `force` it is always compiled.

        `release` is called once the model's files are needed no more, also when this raises; `name` is what the
        user calls the model; `finished` is as in `Ask`, where this compiles. Raise Busy when too many wait, and what
        `key_for` raises.
        """
        try:
            key = key_for(request)
            anew = force or dump_dir is not None
            found = None if anew else self.store.lookup(key)
            with self._lock:
                joined = None if anew else self._jobs.get(key.digest)
                if found is None and (joined is None or joined.ended):
                    job = Job(request, key.digest, release, anew=anew)
                    return self._enqueue(job, key, dump_dir, name or str(request.model.path), finished)
        except BaseException:
            release()
            raise
        if joined is not None and found is None:
            release()
            return Submitted(joined, Origin.JOINED)
        assert found is not None
        return Submitted(_finished(request, key, release, found), Origin.HIT)

    def counts(self) -> tuple[int, int]:
        """Return how many jobs run, and how many wait."""
        with self._lock:
            states = [job.state for job in self._jobs.values()]
        return states.count(State.RUNNING), states.count(State.QUEUED)

    def stop(self) -> None:
        """Refuse new requests, and end every job with that reason; `close` waits until none is left."""
        with self._lock:
            self._closed = True
            jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel(ServiceError("the service is shutting down"))

    def close(self) -> None:
        """Stop, and return when no job is left."""
        self.stop()
        self._threads.shutdown(wait=True)

    def _enqueue(
        self, job: Job, key: Key, dump_dir: Path | None, name: str, finished: Callable[[Sequence[Path]], None]
    ) -> Submitted[Job]:
        if self._closed:
            raise ServiceError("the service is shutting down")
        waiting = sum(job.state is State.QUEUED for job in self._jobs.values())
        if waiting >= self._queue_max:
            raise Busy(f"{waiting} compiles wait already", waiting=waiting, limit=self._queue_max)
        self._jobs[job.id if job.anew else key.digest] = job
        job.done.add_done_callback(lambda _: self._forget(job))
        self._threads.submit(self._work, job, key, dump_dir, name, finished)
        return Submitted(job, Origin.MISS)

    def _forget(self, job: Job) -> None:
        with self._lock:
            self._jobs = {known: other for known, other in self._jobs.items() if other is not job}

    def _work(
        self, job: Job, key: Key, dump_dir: Path | None, name: str, finished: Callable[[Sequence[Path]], None]
    ) -> None:
        """Runs in a thread of ours; whatever happens, the job ends."""
        if not job.start():
            return
        try:
            allowed = _confinement(job.request, dump_dir)
            ask = Ask(
                job.request, key, name, allowed, _waited_s(job), dump_dir=dump_dir, anew=job.anew, finished=finished
            )
            job.succeed(self._compile(ask, job.take, job.cancellation))
        except Exception as error:  # noqa: BLE001  # whatever it is, those who wait are told
            job.fail(job_error(error, job.id, reason=job.cancel_reason, stage=job.stage))


def _confinement(request: CompileRequest, dump_dir: Path | None) -> Confinement:
    """A compile of whoever runs this process may read what they may: their model, plugins and records, in folders."""
    reads = folders_of(request.model.path, *places_read(request))
    return Confinement(reads, (dump_dir.absolute(),) if dump_dir else (), own_user=False)


def _waited_s(job: Job) -> float:
    return round((job.started_s or time.time()) - job.created_s, 3)


def _finished(request: CompileRequest, key: Key, release: Callable[[], None], found: Entry) -> Job:
    job = Job(request, key.digest, release)
    job.succeed(found)
    return job
