"""Runs tasks on nodes of one kind of a Ray cluster: what they read goes along, what they tell and leave comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaxc.service.errors import Cancelled, CompilerCrashed, RelaxcError, ServiceError
from relaxc.service.jobs.kernels import JOURNAL
from relaxc.service.jobs.ray.cargo import Cargos
from relaxc.service.jobs.ray.resources import Kind
from relaxc.service.jobs.ray.shipment import is_plain_name, of_task
from relaxc.service.process.bounds import bounded
from relaxc.service.process.failures import with_context
from relaxc.service.process.pool import Cancellation
from relaxc.service.process.task import Emit, Flavour, Task

if TYPE_CHECKING:
    from relaxc.service.jobs.ray.cluster import Cluster

__all__ = ["RayRunner"]

_POLL_S = 0.1
_CANCEL_S = 60.0
"""How long a task may take to end its job in order; then Ray kills the process that runs it."""


class RayRunner:
    """A `relaxc.service.process.runner.Runner`; what a node says is believed as what a worker says is."""

    groups: Path | None = None

    def __init__(self, cluster: Cluster, kind: Kind, parts: int) -> None:
        """`parts` is how many jobs, other than tunings, a node runs at once."""
        self._cluster, self._kind, self._parts = cluster, kind, max(1, parts)
        self._cargos = Cargos(cluster.put)
        self._running: set[Cancellation] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def running(self) -> int:
        """How many tasks run, or wait for their node."""
        with self._lock:
            return len(self._running)

    def warm(self, *flavours: Flavour) -> None:
        """Do nothing: a process of a node has its zygotes from its first task on."""

    def ready(self) -> dict[Flavour, dict[str, Any]]:
        """Return nothing: a node says itself how whole its sandbox is, where a task asks for it."""
        return {}

    def run(self, task: Task, on_event: Emit, *, cancellation: Cancellation | None = None) -> dict[str, Any]:
        """See `Runner.run`. The files that the task leaves are in its folder here."""
        cancellation = cancellation or Cancellation()
        with self._lock:
            if self._closed:
                raise ServiceError("the service is shutting down")
            self._running.add(cancellation)
        try:
            return self._run(task, on_event, cancellation)
        finally:
            with self._lock:
                self._running.discard(cancellation)

    def close(self) -> None:
        """Cancel what runs."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for cancellation in running:
            cancellation.cancel()

    def _run(self, task: Task, on_event: Emit, cancellation: Cancellation) -> dict[str, Any]:
        shipment = of_task(task)
        known = {path.name: path.read_bytes() for path in task.workdir.iterdir() if _goes_along(path)}
        stage: list[str | None] = [None]
        share = self._kind.share(1 if task.tunes else self._parts)
        stream = self._cluster.perform(
            shipment.task, self._cargos.of(shipment), known, share, self._kind, helped=task.tunes
        )
        ending: dict[str, Any] = {}
        for told in self._heard(stream, cancellation):  # to its end, which comes once the node has cleared away
            match told:
                case {"event": dict(event)}:
                    if event.get("event") == "stage" and event.get("state") == "start":
                        stage[0] = str(event.get("stage"))
                    on_event(event)
                case {"log": bytes(added)}:
                    with task.log_path.open("ab") as log:
                        log.write(added)
                case {"file": name, "data": bytes(data)} if is_plain_name(name):
                    with (task.workdir / name).open("ab") as file:
                        file.write(data)
                case {"error": dict()} | {"result": dict()}:
                    ending = told
        if "error" in ending:
            raise with_context(bounded(RelaxcError.from_dict(ending["error"])), task, stage[0])
        if "result" in ending:
            result: dict[str, Any] = ending["result"]
            return result
        raise CompilerCrashed("the node's task ended without a result", stage=stage[0])

    def _heard(self, stream: Any, cancellation: Cancellation) -> Iterator[dict[str, Any]]:
        """What the task on the node tells, in order, until it has ended. Raise Cancelled, RunnerLost."""
        is_cancelled, polls = False, 0.0
        try:
            while True:
                if cancellation.cancelled and not is_cancelled:
                    is_cancelled = True
                    self._cluster.cancel(stream)
                found = self._cluster.next(stream, _POLL_S)
                if found is not None:
                    if not is_cancelled:
                        yield found
                    continue
                polls += _POLL_S if is_cancelled else 0.0
                if polls > _CANCEL_S:
                    self._cluster.cancel(stream, force=True)
                    polls = 0.0
        except StopIteration:
            return
        except GeneratorExit:
            self._cluster.cancel(stream)
            raise
        except self._cluster.ended_early as error:
            if is_cancelled:
                raise Cancelled("the compile was cancelled") from None
            raise self._cluster.meaning(error) from error


def _goes_along(path: Path) -> bool:
    """Whether a file of the job's folder is for the job: a kernel cache's journal is this machine's."""
    return path.is_file() and path.name != JOURNAL
