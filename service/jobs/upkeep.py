"""What a process of the service does again and again: heartbeats, taking up what the dead left, sweeps, placement."""

from __future__ import annotations

from dataclasses import dataclass

from relaxc.service.artifact.store import Store
from relaxc.service.config import settings
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.disks import Disks
from relaxc.service.jobs.objects.artifacts import Artifacts
from relaxc.service.jobs.objects.recordsets import RecordSets
from relaxc.service.jobs.queue.keeper import Keeper, Periodic
from relaxc.service.jobs.queue.notices import Notices
from relaxc.service.jobs.queue.sweep import Sweep
from relaxc.service.jobs.queue.trials import settle_ended
from relaxc.service.jobs.scrub import Scrub
from relaxc.service.jobs.workers.fleet import Role
from relaxc.service.jobs.workers.placement import Placement
from relaxc.service.process.groups import Groups
from relaxc.service.process.workspace import Workspace

__all__ = ["Upkeep"]

_BEATS_A_LEASE = 4
_SWEEP_S, _SCRUB_S, _RELIEF_S, _PLACEMENT_S = 600.0, 60.0, 5.0, 2.0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The parts that it works on; `groups` has only who may make control groups."""

    role: Role
    keeper: Keeper
    database: Database
    disks: Disks
    store: Store
    workspace: Workspace
    groups: Groups | None
    blobs: Blobs
    artifacts: Artifacts
    records: RecordSets
    retention: Sweep
    placement: Placement
    notices: Notices
    scrub: Scrub

    def start(self, lease_s: float) -> list[Periodic]:
        """Return the threads, which run from now on until they are closed."""
        beat_s = lease_s / _BEATS_A_LEASE
        return [
            Periodic("heartbeat", beat_s, self.keeper.beat),
            Periodic("recovery", beat_s, self.recover),
            Periodic("sweep", _SWEEP_S, self.sweep),
            Periodic("scrub", _SCRUB_S, self.scrub),
            Periodic("relief", _RELIEF_S, self.relieve),
            *([Periodic("placement", _PLACEMENT_S, self.place)] if self.role is Role.SERVER else []),
        ]

    def sweep(self) -> None:
        """Remove what is old (`relaxc.service.jobs.queue.retention`).

        What all share is the servers' to clear away, what is on its own disk a worker's.
        """
        self.workspace.sweep()
        if self.groups is not None:
            self.groups.sweep()
        self.store.sweep()
        if self.role is Role.WORKER:
            self.blobs.local.sweep(settings().orphan_expiry_s, clock.file_time())
            return
        self.retention()
        self.artifacts.measure()

    def relieve(self) -> None:
        """On a disk that is short, what nobody has any more goes at once, and artifacts that are over their limit."""
        if self.disks.short():
            self.sweep()
            self.store.gc()

    def place(self) -> None:
        """Tell jobs that nobody can take what they wait for."""
        for id in self.placement():
            self.notices.told(id)
            self.notices.webhooks.wake()

    def recover(self) -> None:
        """Take up the jobs of processes that are gone."""
        if self.keeper.recover():
            self.settle_ended()
            self.notices.queued()

    def settle_ended(self) -> None:
        """Make record sets of what tunings had won that ended without one."""
        settle_ended(self.database, self.records)
