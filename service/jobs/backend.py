"""Everything behind the API, opened and closed as one: database, blobs, store, scheduler, workers, webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from relaxc.service.artifact.store import Store
from relaxc.service.config import settings
from relaxc.service.errors import ServiceError
from relaxc.service.jobs.blobs.mirrored import open_blobs
from relaxc.service.jobs.database import instances, jobs
from relaxc.service.jobs.database.engine import Database, url_of_settings
from relaxc.service.jobs.database.rows import JobKind, JobRow
from relaxc.service.jobs.disks import Disks
from relaxc.service.jobs.job import State
from relaxc.service.jobs.objects.allowance import Allowance
from relaxc.service.jobs.objects.artifacts import Artifacts
from relaxc.service.jobs.objects.audit import Audit
from relaxc.service.jobs.objects.keys import Keys
from relaxc.service.jobs.objects.models import Models
from relaxc.service.jobs.objects.owners import Owners
from relaxc.service.jobs.objects.recordsets import RecordSets
from relaxc.service.jobs.objects.uploads import Uploads
from relaxc.service.jobs.once import COMPILE_ENTRY, CompileOnce
from relaxc.service.jobs.queue.budget import Budget
from relaxc.service.jobs.queue.desk import Jobs
from relaxc.service.jobs.queue.executor import Executor
from relaxc.service.jobs.queue.keeper import Keeper
from relaxc.service.jobs.queue.kinds import ENTRIES, Kinds
from relaxc.service.jobs.queue.notices import Notices
from relaxc.service.jobs.queue.readiness import reasons
from relaxc.service.jobs.queue.retention import Place
from relaxc.service.jobs.queue.running import Running, Watch
from relaxc.service.jobs.queue.scheduler import Scheduler, anything
from relaxc.service.jobs.queue.submission import Submission
from relaxc.service.jobs.queue.sweep import Sweep
from relaxc.service.jobs.queue.trials import settle
from relaxc.service.jobs.scrub import Scrub
from relaxc.service.jobs.upkeep import Upkeep
from relaxc.service.jobs.webhooks.deliver import WEBHOOK_THREADS
from relaxc.service.jobs.workers.accepting import Accepting
from relaxc.service.jobs.workers.fleet import Fleet, Role
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.jobs.workers.placement import Placement
from relaxc.service.jobs.workers.slots import connections_of, slots_of, tunes_alone
from relaxc.service.process.groups import Bound, bound_of_settings
from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Pool
from relaxc.service.process.runner import Runner
from relaxc.service.process.task import Flavour
from relaxc.service.process.workspace import Workspace

__all__ = ["Backend", "Counts"]


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs run and wait, over all servers of the database."""

    running: int
    waiting: int


class Backend:
    """What a route gets. Every call of its parts may be made from any thread.

    Opening it migrates the database, takes up what a dead server left, and starts the scheduler.
    """

    def __init__(
        self,
        cache_dir: Path | None = None,
        *,
        workers: int | None = None,
        tune_workers: int | None = None,
        role: Role = Role.SERVER,
        machine: Machine | None = None,
        pool: Runner | None = None,
        queue_max: int | None = None,
        limits: Limits | None = None,
        entry: str = COMPILE_ENTRY,
        entries: Mapping[JobKind, str] = ENTRIES,
        database_url: str | None = None,
        blobs_url: str | None = None,
    ) -> None:
        """What is None is as the settings say; `entry` is what a child of a `compile` runs, `entries` the others'.

        `pool` is what runs the jobs, processes of this one if None, and `machine` what it runs them on.

        Raise InvalidOption for settings that cannot be used, ServiceError where the database does not answer.
        """
        values, limits = settings(), limits or Limits.of_settings()
        root = cache_dir or values.cache_dir
        with ExitStack() as on_failure:
            self.store = Store(root, values.cache_max_bytes)
            self.workspace = on_failure.enter_context(Workspace(root / "jobs"))
            self.pool: Runner = pool or Pool()
            self._is_local = pool is None
            self.bound = bound_of_settings() if pool is None else Bound(missing="its jobs run on other machines")
            self.pool.groups = None if self.bound.groups is None else self.bound.groups.base
            self._slots = slots = slots_of(role, workers, tune_workers)
            self.database = Database(database_url or url_of_settings(root), connections_of(role, sum(slots.values())))
            on_failure.callback(self.database.close)
            chosen = values.blobs_url if blobs_url is None else blobs_url
            self.blobs = open_blobs(chosen, root / "blobs", values.s3_endpoint_url or None)
            on_failure.callback(self.blobs.close)
            self.role, self.machine = role, machine or Machine.here_if_known()
            self.fleet = Fleet(self.database)
            about = {"role": role, "slots": slots[False], "tune_slots": slots[True]}
            described = None if self.machine is None else self.machine.to_dict()
            self._keeper = Keeper(
                self.database, self.workspace, root, values.server_lease_s, {**about, "machine": described}
            )
            self._keeper.recover()
            on_failure.pop_all()
        self.disks = Disks(values.disk_reserve_bytes, root, self.blobs.local.root, *self.database.folders)
        limits = replace(limits, disk_floor_bytes=values.disk_reserve_bytes // 2)
        self.keys = Keys(self.database)
        self.owners = Owners(self.database)
        self.budget = Budget(values.memory_budget_bytes)
        self.models = Models(self.database, self.blobs, self.pool, self.workspace, self.budget.lend)
        self.allowance = Allowance(self.database, self._keeper.id)
        self.uploads = Uploads(self.blobs.local.root / "uploads", self.models, self.allowance, self.workspace)
        self.artifacts = Artifacts(self.database, self.blobs, self.store, self.workspace)
        self.records = RecordSets(self.database, self.blobs)
        self.audit = Audit(self.database)
        self.retention = Sweep(self.database, self.blobs, self.uploads, self.models, self.records)
        self.store.spared = self.retention.needed_artifacts
        self.store.removed = partial(self.retention.removed.add, Place.CACHE, "artifacts")
        self.scrub = Scrub(self.store, self.models)
        self.watchers: list[Watch] = []
        self._stopped = False
        self._start(self._kinds(limits, entry, entries), slots, queue_max or values.queue_max)

    def _kinds(self, limits: Limits, entry: str, entries: Mapping[JobKind, str]) -> Kinds:
        return Kinds(
            CompileOnce(self.store, self.pool, self.workspace, limits, entry),
            self.pool,
            self.workspace,
            limits,
            self.blobs,
            self.models,
            self.artifacts,
            self.records,
            entries,
            self.machine,
        )

    def _start(self, kinds: Kinds, slots: dict[bool, int], queue_max: int) -> None:
        """The threads: from here on jobs run."""
        is_server = self.role is Role.SERVER
        self._notices = Notices(self.database, lambda: self._scheduler.wake(), WEBHOOK_THREADS if is_server else 0)
        self._executor = Executor(self.database, kinds, self._ended)
        self._scheduler = Scheduler(
            self.database,
            self._keeper.id,
            slots,
            self.budget,
            self._begin,
            self._executor,
            self.disks.short,
            anything if self.machine is None else Accepting(self.machine),
            tunes_alone=self._is_local and tunes_alone(self.role),
            poll_s=self._notices.poll_s,
        )
        submission = Submission(
            self.database,
            self.models,
            self.artifacts,
            self.records,
            self.fleet,
            queue_max=queue_max,
        )
        self.placement = Placement(self.database, self.fleet)
        self.upkeep = Upkeep(
            self.role,
            self._keeper,
            self.database,
            self.disks,
            self.store,
            self.workspace,
            self.bound.groups,
            self.blobs,
            self.artifacts,
            self.records,
            self.retention,
            self.placement,
            self._notices,
            self.scrub,
        )
        self.jobs = Jobs(
            self.database,
            self.blobs,
            self._notices.hub,
            submission,
            self._notices.queued,
            self._scheduler.find,
            self.upkeep.settle_ended,
        )
        self._periodic = self.upkeep.start(settings().server_lease_s)
        self._notices.start()
        self._scheduler.start()

    @property
    def id(self) -> str:
        """As whom it is registered."""
        return self._keeper.id

    def warm(self) -> None:
        """Start the workers of both flavours, without waiting for them."""
        self.pool.warm(*Flavour)

    def counts(self) -> Counts:
        """Return how many jobs run and how many wait. Raise ServiceError where the database does not answer."""
        with self.database.read() as connection:
            found = jobs.count(connection)
        return Counts(found.get(State.RUNNING, 0), found.get(State.QUEUED, 0))

    def ready(self) -> list[str]:
        """Why requests cannot be taken now; empty when they can."""
        stopped = ["the server is shutting down"] if self._stopped else []
        return [*stopped, *reasons(self.database, self.pool, self.store.root, self.disks)]

    def sweep(self) -> None:
        """Remove what is old; it is done every ten minutes anyway."""
        self.upkeep.sweep()

    def place(self) -> None:
        """Tell jobs that nobody can take what they wait for; it is done every two seconds anyway."""
        self.upkeep.place()

    def stop(self, drain_s: float = 0.0) -> None:
        """Start no more jobs, give those that run `drain_s` seconds, and queue the others for the next server.

        Who follows a job is told that the service stops. May be called twice.
        """
        if not self._stopped:
            self._stopped = True
            self._scheduler.stop(drain_s)
            self.pool.close()  # wakes the jobs that wait for a worker's imports
            self._executor.close()
            self._scheduler.join()
            self._notices.hub.close()

    def resize(self, slots: Mapping[bool, int]) -> None:
        """Run so many jobs at once from now on, and so many tunings (True)."""
        self._slots.update(slots)
        self._scheduler.wake()

    def hurry(self) -> None:
        """Make a `stop` that waits for running jobs wait no longer."""
        self._scheduler.hurry()

    def close(self) -> None:
        """Stop, and remove the folders. May be called twice."""
        self.stop()
        self.retention.close()
        for periodic in self._periodic:
            periodic.close()
        self._periodic = []
        self._notices.close()
        try:
            self._keeper.close()
        except ServiceError:  # the database has gone: the next server sees that our folder is held by nobody
            pass
        finally:
            self.workspace.close()
            self.blobs.close()
            self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, job: JobRow, memory_bytes: int) -> Running:
        self._notices.told(job.id)
        return Running(job, memory_bytes, self.database, self.blobs, self._notices.told, self._watch, self._is_shared)

    def _is_shared(self) -> bool:
        """Whether another process may be asked for the log of a job that runs here."""
        with self.database.read() as connection:
            return instances.any_other(connection, self.id)

    def _watch(self, job: JobRow, data: dict[str, Any]) -> None:
        for watch in self.watchers:
            watch(job, data)

    def _ended(self, job: JobRow) -> None:
        self._notices.ended(job.id)
        if job.kind is JobKind.TUNE:
            settle(self.database, self.records, job.id)
