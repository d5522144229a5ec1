"""A real Ray cluster of several nodes on this machine, each of the kind of machine that it is told to be."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from relaxc.service.jobs.ray.resources import resources_of
from relaxc.service.jobs.workers.machine import Machine

__all__ = ["MACHINE", "RayNodes", "machine", "running_ray"]

MACHINE = "tests.ray_nodes:machine"
_SAID = "RELAXC_TEST_MACHINE"
_STORE_BYTES = 80 << 20
_TRIES = 5
T = TypeVar("T")


def machine() -> Machine:
    """On a node: what it was told that it is."""
    return Machine.from_dict(json.loads(os.environ[_SAID]))


class RayNodes:
    """A head node that runs nothing, where the driver is, and nodes by name, which are killed and started again."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        self._cluster = _started(lambda: Cluster(initialize_head=True, head_node_args=head))
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """The setting RELAXC_RUNNER."""
        return f"ray://{self._cluster.address}"

    def start(self, name: str, is_a: Machine, *, on: int | None = None, **settings: object) -> None:
        """A node with a folder of its own, all of it on one core where that is said."""
        environment = {
            "RELAXC_CACHE_DIR": str(self._folder / name),
            "RELAXC_SANDBOX": "auto",
            _SAID: json.dumps(is_a.to_dict()),
            **{f"RELAXC_{key}": str(value) for key, value in settings.items()},
        }
        options = {
            "num_cpus": 2,
            "num_gpus": len(is_a.gpus),
            "resources": dict(resources_of(is_a)),
            "object_store_memory": _STORE_BYTES,
            "env_vars": environment,
        }
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores if on is None else {on})
        try:
            self._nodes[name] = _started(lambda: self._cluster.add_node(**options))
        finally:
            os.sched_setaffinity(0, cores)

    def kill(self, name: str) -> None:
        """SIGKILL to all that Ray has there."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        """Ends all."""
        self._cluster.shutdown()


def _started(start: Callable[[], T]) -> T:
    """What is started; Ray gives a node 30 s for that, which a loaded machine may not have."""
    for _ in range(_TRIES):
        before = {process.pid for process in psutil.Process().children(recursive=True)}
        try:
            return start()
        except Exception as error:  # noqa: BLE001  # Ray raises no other
            failed = error
            for process in psutil.Process().children(recursive=True):
                if process.pid not in before:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
    raise failed


@contextmanager
def running_ray(folder: Path, nodes: Mapping[str, Machine], **settings: object) -> Iterator[RayNodes]:
    """Give a cluster with these nodes."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = RayNodes(folder)
    try:
        for name, is_a in nodes.items():
            cluster.start(name, is_a, **settings)
        yield cluster
    finally:
        cluster.close()
