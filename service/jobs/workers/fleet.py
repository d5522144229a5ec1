"""The servers and workers of one database: what they are, and which of them could take a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import InvalidTarget
from relaxc.service.jobs.database import instances
from relaxc.service.jobs.database.engine import Database, url_of_settings
from relaxc.service.jobs.database.rows import JobKind, iso_time
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.jobs.workers.needs import Needs
from relaxc.service.lowering.target import resolve
from relaxc.service.request import TargetSpec

__all__ = ["LOCAL_WORDS", "Fleet", "Role", "Worker", "missing_of_all", "open_fleet"]

_FRESH_S = 1.0
_SILENT = 0.5
"""Of a lease: two heartbeats that did not come."""

LOCAL_WORDS = ("auto", "auto-gpu", "cuda")
"""Targets that are another thing on each machine."""


class Role(StrEnum):
    """What a process of the service is for: calls of the API, or jobs alone."""

    SERVER = "server"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Worker:
    """One of them; `machine` is None for a process of a version that did not say what its machine is."""

    id: str
    role: str
    host: str
    pid: int
    started: float
    heartbeat: float
    silent_s: float
    slots: int
    tune_slots: int
    running: int
    machine: Machine | None

    @staticmethod
    def of(row: dict[str, Any]) -> Worker:
        """Return the worker that a row of `instances.every` tells of."""
        names = ("id", "role", "host", "pid", "started", "heartbeat", "slots", "tune_slots", "running")
        machine = None if row["machine"] is None else Machine.from_dict(row["machine"])
        return Worker(**{name: row[name] for name in names}, silent_s=max(0.0, row["silent"]), machine=machine)

    @property
    def state(self) -> str:
        """`alive` or `silent`."""
        return "silent" if self.is_silent else "alive"

    @property
    def is_silent(self) -> bool:
        """Whether it has missed heartbeats: it is dead, or soon taken for it."""
        return self.silent_s > settings().server_lease_s * _SILENT

    def takes(self, kind: JobKind) -> bool:
        """Return whether it runs jobs of this kind at all."""
        return (self.tune_slots if kind is JobKind.TUNE else self.slots) > 0

    def missing(self, needs: Needs) -> list[str]:
        """Return what it lacks for a job with these needs. Where nobody knows, it is believed to have everything."""
        return [] if self.machine is None else needs.missing(self.machine)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "id": self.id,
            "role": self.role,
            "state": self.state,
            "host": self.host,
            "pid": self.pid,
            "started": iso_time(self.started),
            "heartbeat": iso_time(self.heartbeat),
            "slots": {"jobs": self.slots, "tunings": self.tune_slots},
            "running": self.running,
            "machine": None if self.machine is None else _described(self.machine),
        }


class Fleet:
    """What is registered in one database, at most a second old. Any thread may call it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._known: tuple[Worker, ...] = ()
        self._asked = float("-inf")

    def every(self, *, fresh: bool = False) -> tuple[Worker, ...]:
        """Return all of them, the oldest first. Raise ServiceError where the database does not answer."""
        with self._lock:
            if fresh or time.monotonic() - self._asked > _FRESH_S:
                with self._database.read() as connection:
                    rows = instances.every(connection)
                self._known, self._asked = tuple(map(Worker.of, rows)), time.monotonic()
            return self._known

    @property
    def is_alone(self) -> bool:
        """Whether a server with slots of its own is all that there is: no fleet that another could come back to."""
        found = self.every()
        return len(found) == 1 and found[0].role == Role.SERVER and found[0].slots > 0

    def takers(self, kind: JobKind) -> list[Worker]:
        """Return those that live and run jobs of this kind. A server that is alone and was asked lives."""
        alone = self.is_alone
        return [each for each in self.every() if each.takes(kind) and (alone or not each.is_silent)]

    def missing(self, kind: JobKind, needs: Needs) -> list[str]:
        """Return what such a job waits for, as phrases for a person; empty where somebody can take it."""
        return missing_of_all(self.takers(kind), kind, needs)

    def means(self, asked: str, kind: JobKind) -> TargetSpec | None:
        """Return the target that `asked` means for a job of this kind; None where that is for who runs it to say.

        `auto` is what the workers are that live, where they are of one kind. Other words are also understood by who is
        silent: `auto-gpu`, and the name of a machine's own target. Raise InvalidTarget, for `auto-gpu` also where
        nobody has a GPU.
        """
        word = asked.strip()
        # Who is silent may live: when a database comes back all heartbeats are late, and a name means what it did.
        found = self.takers(kind) if word == "auto" else [each for each in self.every() if each.takes(kind)]
        machines = [each.machine for each in found if each.machine is not None]
        if word not in LOCAL_WORDS:
            return _named(word, machines)
        if word != "auto" and machines and not any(machine.gpus for machine in machines):
            raise InvalidTarget(
                f"no worker has a CUDA device; there are {', '.join(sorted({each.kind for each in machines}))}",
                remedy="Name the device to compile for: `cuda-sm90` needs no GPU.",
            )
        meant = _each_once(each.target if word == "auto" else each.gpu_target for each in machines)
        return meant[0] if len(meant) == 1 else None

    def own_targets(self) -> list[tuple[str, TargetSpec]]:
        """Return what `auto` and `auto-gpu` mean where that is one thing, and then each of the workers' own by name."""
        machines = [each.machine for each in self.takers(JobKind.COMPILE) if each.machine is not None]
        lists = _each_once(each.target for each in machines), _each_once(each.gpu_target for each in machines)
        alike = [(word, found[0]) for word, found in zip(("auto", "auto-gpu"), lists, strict=True) if len(found) == 1]
        names = [(target.name, target) for found in lists if len(found) > 1 for target in found]
        return [*alike, *names]

    def lacks(self, target: TargetSpec) -> list[str]:
        """Return what the machine lacks that will compile for this target, to verify it: nothing where one can."""
        machines = [each.machine for each in self.takers(JobKind.COMPILE) if each.machine is not None]
        found = [machine.lacks(target) for machine in machines or [Machine.here()]]
        return min(found, key=lambda each: (len(each), each))


@contextmanager
def open_fleet() -> Iterator[Fleet]:
    """Return the fleet of the database that the settings name, for a command. Raise InvalidOption, ServiceError."""
    with closing(Database(url_of_settings(settings().cache_dir))) as database:
        yield Fleet(database)


def missing_of_all(takers: Sequence[Worker], kind: JobKind, needs: Needs) -> list[str]:
    """Return what the one of these lacks that lacks the least; where there is none, what kind of worker."""
    found = [each.missing(needs) for each in takers]
    if not found:
        return [f"a worker that runs {'tunings' if kind is JobKind.TUNE else 'jobs other than tunings'}"]
    return min(found, key=len)


def _named(word: str, machines: Sequence[Machine]) -> TargetSpec:
    try:
        return resolve(word)
    except InvalidTarget:
        own = _each_once(target for each in machines for target in (each.target, each.gpu_target))
        found = [target for target in own if target.name == word]
        if len(found) != 1:
            raise
        return found[0]


def _each_once(targets: Iterable[TargetSpec | None]) -> list[TargetSpec]:
    found: list[TargetSpec] = []
    for target in targets:
        if target is not None and target not in found:
            found.append(target)
    return found


def _described(machine: Machine) -> dict[str, Any]:
    return {
        "kind": machine.kind,
        "cpu": machine.title,
        "arch": machine.arch,
        "family": machine.family,
        "features": list(machine.target.features),
        "cores": machine.cores,
        "memory_bytes": machine.memory_bytes,
        "gpus": [{"name": gpu.name, "capability": "{}.{}".format(*gpu.capability)} for gpu in machine.gpus],
        "tools": list(machine.tools),
        "versions": dict(machine.versions),
        "devices": [{"key": device.key, "target": device.target.name} for device in machine.devices],
    }
