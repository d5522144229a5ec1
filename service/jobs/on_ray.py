"""Jobs on a Ray cluster: a worker of the database for each kind of its nodes, as long as there are such."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from relaxc.service.errors import RelaxcError
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.queue.keeper import Periodic
from relaxc.service.jobs.ray.cluster import MACHINE, Cluster
from relaxc.service.jobs.ray.resources import Kind
from relaxc.service.jobs.ray.runner import RayRunner
from relaxc.service.jobs.workers.fleet import Role

__all__ = ["OnRay"]

_LOG = logging.getLogger("relaxc.ray")
_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class _At:
    kind: Kind
    backend: Backend


class OnRay:
    """What claims jobs for the nodes; `slots` is for each node, as a worker there would have them."""

    def __init__(
        self,
        address: str,
        slots: dict[bool, int],
        open_backend: Callable[..., Backend] = Backend,
        machine: str = MACHINE,
    ) -> None:
        """Raise what `Cluster` raises, and what a Backend does."""
        self._slots, self._open = slots, open_backend
        self._cluster = Cluster(address, machine)
        self._at: dict[str, _At] = {}
        self._lock = threading.Lock()
        self._looking: Periodic | None = None

    def __enter__(self) -> Self:
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._look()
            self._looking = Periodic("nodes", _LOOK_S, self._look)
            on_failure.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ids(self) -> list[str]:
        """As whom it is registered, by kind."""
        with self._lock:
            return [at.backend.id for at in self._at.values()]

    def hurry(self) -> None:
        """Make a `stop` that waits for running jobs wait no longer."""
        for backend in self._backends():
            backend.hurry()

    def stop(self, drain_s: float = 0.0) -> None:
        """Start no more jobs; those that run have `drain_s` seconds, and are queued again then."""
        if self._looking is not None:
            self._looking.close()
        stopping = [threading.Thread(target=each.stop, args=(drain_s,)) for each in self._backends()]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    def close(self) -> None:
        """Stop, and let go of the cluster."""
        self.stop()
        for backend in self._backends():
            backend.close()
        self._cluster.close()

    def _backends(self) -> list[Backend]:
        with self._lock:
            return [at.backend for at in self._at.values()]

    def _look(self) -> None:
        """A worker for each kind that is new, or that has more or fewer nodes, and none for one that has gone."""
        kinds = self._cluster.kinds()
        with self._lock:
            changed = [name for name, at in self._at.items() if name not in kinds]
        for name in changed:
            self._end(name)
        for name, kind in kinds.items():
            at = self._at.get(name)
            if at is None:
                self._begin(kind)
            elif at.kind.nodes != kind.nodes:
                at.backend.resize(self._slots_of(kind))
                with self._lock:
                    self._at[name] = _At(kind, at.backend)

    def _begin(self, kind: Kind) -> None:
        slots = self._slots_of(kind)
        backend = self._open(
            workers=slots[False],
            tune_workers=slots[True],
            role=Role.WORKER,
            machine=kind.machine,
            pool=RayRunner(self._cluster, kind, self._slots[False]),
        )
        with self._lock:
            self._at[kind.resource] = _At(kind, backend)
        _LOG.info("%d nodes of kind %s (%s)", kind.nodes, kind.machine.kind, kind.resource)

    def _end(self, name: str) -> None:
        with self._lock:
            at = self._at.pop(name)
        _LOG.warning("the last node of kind %s (%s) has gone", at.kind.machine.kind, name)
        try:
            at.backend.close()
        except RelaxcError as error:
            _LOG.warning("%s", error)

    def _slots_of(self, kind: Kind) -> dict[bool, int]:
        return {lane: number * kind.nodes for lane, number in self._slots.items()}
