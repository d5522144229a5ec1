"""A Ray cluster: its nodes by kind, and tasks on them. The only module that imports ray."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from relaxc.service.errors import CompilerCrashed, RelaxcError, ServerUnreachable, ToolMissing
from relaxc.service.jobs.ray import node
from relaxc.service.jobs.ray.building import Builders
from relaxc.service.jobs.ray.node import Cargo
from relaxc.service.jobs.ray.resources import KIND, Kind, builds
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.process.runner import RunnerLost
from relaxc.service.request import TargetSpec

__all__ = ["MACHINE", "Cluster"]

_LOG = logging.getLogger("relaxc.ray")
_SCHEME = "ray://"
_ASK_S, _REACH_S = 60.0, 10.0
_AHEAD = 32
"""What a task may tell before anybody has heard it; then it waits."""

_BUILD_TRIES = 3
MACHINE = "relaxc.service.jobs.workers.machine:Machine.here"
"""What says what a node is, but in tests."""


class Cluster:
    """One connection of this process, which is a driver on one of its nodes."""

    def __init__(self, address: str, machine: str = MACHINE) -> None:
        """`address` is that of the setting RELAXC_RUNNER.

        Raise ToolMissing without the extra `ray`, ServerUnreachable where there is no such cluster.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ToolMissing("ray is not installed", remedy="pip install 'relaxc[ray]'.", extra="ray") from error
        self._ray, self._machine = ray, machine
        self._known: dict[str, Machine] = {}
        where = address.removeprefix(_SCHEME)
        try:
            _reach(where)  # Ray would try for minutes
            ray.init(where, namespace="relaxc", log_to_driver=False, configure_logging=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise ServerUnreachable(
                f"{address}: {error}", remedy="`ray start --address HOST:PORT` makes this machine one of its nodes."
            ) from error
        self._perform = ray.remote(max_retries=0, _generator_backpressure_num_objects=_AHEAD)(_perform)
        self._told_machine = ray.remote(num_cpus=0, max_retries=_BUILD_TRIES)(_told_machine)

    @property
    def ended_early(self) -> type[Exception]:
        """What a stream raises whose task did not come to its end."""
        found: type[Exception] = self._ray.exceptions.RayError
        return found

    def kinds(self) -> dict[str, Kind]:
        """Return the kinds of nodes that live, by resource. One whose machine cannot be asked now is left out."""
        live = [each["Resources"] for each in self._ray.nodes() if each["Alive"]]
        counts = Counter(name for offered in live for name in offered if name.startswith(KIND))
        found = {}
        for name, number in counts.items():
            machine = self._machine_of(name)
            if machine is not None:
                found[name] = Kind(name, machine, number)
        return found

    def _machine_of(self, kind: str) -> Machine | None:
        if kind not in self._known:
            asked = self._told_machine.options(resources={kind: 0.0001}).remote(self._machine)
            try:
                machine = Machine.from_dict(self._ray.get(asked, timeout=_ASK_S))
                self._known[kind] = replace(machine, devices=())  # a task has no network
            except self.ended_early as error:
                _LOG.warning("nodes of kind %s cannot be asked what they are: %s", kind, error)
                return None
        return self._known[kind]

    def put(self, data: bytes) -> Any:
        """Return a reference to bytes that nodes can fetch."""
        return self._ray.put(data)

    def perform(
        self,
        text: Mapping[str, Any],
        cargo: Cargo,
        known: Mapping[str, bytes],
        share: Mapping[str, float],
        kind: Kind,
        *,
        helped: bool,
    ) -> Any:
        """Begin a task on a node of a kind, of which it takes this share; `next` has what it tells.

        One that is `helped` is a tuning: no candidate is built on its node, and those of its own on others.
        """
        machine = kind.machine
        part = share[kind.resource]
        asked = dict(share)
        if helped:
            asked |= {name: float(machine.cores) for name in _build_resources(machine)}
        gpus = part if machine.gpus else 0
        task = self._perform.options(num_cpus=0, num_gpus=gpus, resources=asked)
        return task.remote(text, dict(cargo), dict(known), helped)

    def next(self, stream: Any, wait_s: float) -> dict[str, Any] | None:
        """Return what a task has told, None where nothing comes in this time. Raise StopIteration at its end, and
        `ended_early`."""
        ready, _ = self._ray.wait([stream], timeout=wait_s)
        if not ready:
            return None
        told: dict[str, Any] = self._ray.get(next(stream))
        return told

    def cancel(self, stream: Any, *, force: bool = False) -> None:
        """End a task, in order or not."""
        self._ray.cancel(stream, force=force)

    def meaning(self, error: Exception) -> RelaxcError | RunnerLost:
        """Return what it means that a stream has ended early: a bug of ours, or that its node, or our process there, is
        lost."""
        if isinstance(error, self._ray.exceptions.RayTaskError):
            _LOG.error("a task has failed on its node: %s", error)
            return CompilerCrashed(f"the node's task failed: {type(error.cause).__name__}", signal=None)
        return RunnerLost(f"its node is lost: {type(error).__name__}")

    def close(self) -> None:
        """Let go of the cluster."""
        self._ray.shutdown()


def _reach(where: str) -> None:
    host, _, port = where.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()


def _perform(
    text: Mapping[str, Any], cargo: Cargo, known: Mapping[str, bytes], helped: bool
) -> Iterator[dict[str, Any]]:
    """On a node."""
    import ray

    if not helped:
        yield from node.perform(text, cargo, known, ray.get)
        return
    spec = TargetSpec.from_dict(text["payload"]["request"]["target"])
    with Builders(builds(spec), _build) as helper:
        payload = {**text["payload"], "far_builders": helper.count}
        yield from node.perform({**text, "payload": payload}, cargo, known, ray.get, helper)


def _build(question: dict[str, Any]) -> dict[str, Any]:
    """On a node."""
    return node.build(question)


def _told_machine(name: str) -> dict[str, Any]:
    """On a node: what it is."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    machine: Machine = found()
    return machine.to_dict()


def _build_resources(machine: Machine) -> list[str]:
    names = [builds(machine.target)]
    if "nvcc" in machine.tools:
        names.append(f"{builds(machine.target)}_cuda")
    return names
