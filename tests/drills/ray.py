"""The drill of a Ray cluster: `python -m tests.drills.ray --rounds 20 --seed N [--folder DIR]`.

The fleet drill (`tests.drills.fleet`) with one `relaxc worker` over a real Ray cluster of four nodes, all on this
machine, in place of three workers: two of one kind, and one of each of two others. In most rounds a node is killed with
SIGKILL, in others that worker, a server, or a process of a job. Exit code 2 where ray or PostgreSQL is not installed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.tables import instances
from tests.drills import fleet
from tests.drills.clients import Account
from tests.drills.killer import kill_child
from tests.drills.world import below, until
from tests.jobs.workers.kinds import BY_NAME
from tests.processes import name_of
from tests.ray_nodes import RayNodes

__all__ = ["OnNodes"]

_NODES = {"zen-1": "zen", "zen-2": "zen", "haswell": "haswell", "hopper": "hopper"}
_WEIGHTS = {"node": 13, "worker": 2, "server": 1, "relaxc-zygote": 2, "relaxc-guard": 1, "relaxc-job": 1}
_JOBS = ("relaxc-job", "relaxc-guard", "relaxc-init")
_NO_HASWELL = "unknown target 'haswell'"
_LATEST_S, _GONE_S, _LOOK_S = 8.0, 120.0, 0.3


class _Driver(fleet.Worker):
    """The process that has the nodes run jobs; it says itself which are there."""

    module = "tests.drills.work_on_ray"

    def _hear(self, line: str) -> None:
        """Behind what Ray prints of nodes that have just been killed."""
        assert self._process.stdout is not None
        while line and not line.startswith("working as "):
            line = self._process.stdout.readline()
        assert line, "the worker does not start"


class OnNodes(fleet.Fleet):
    """Rounds over two servers and a worker that has a Ray cluster."""

    def _open_workers(self, place: fleet.Place, common: dict[str, Any]) -> list[fleet.Worker]:
        self._ids: dict[str, str] = {}
        self._over = threading.Event()
        self._nodes = RayNodes(self._folder / "nodes")
        for name, kind in _NODES.items():
            self._nodes.start(name, BY_NAME[kind])
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        common = common | {"RUNNER": self._nodes.address}
        return [_Driver("driver", *place("driver"), log=self._folder / "driver.log", **common)]

    def _look(self) -> None:
        """Notes which kind each worker is of that registers."""
        titles = {machine.title: name for name, machine in BY_NAME.items()}
        with closing(Database(self._postgres.url)) as database:
            while not self._over.wait(_LOOK_S):
                try:
                    with database.read() as connection:
                        rows = connection.execute(sa.select(instances.c.id, instances.c.machine)).all()
                except ServiceError:
                    continue
                self._ids |= {row.id: titles[row.machine["title"]] for row in rows if row.machine["title"] in titles}

    def kinds(self) -> dict[str, str]:
        """See `Fleet`."""
        return dict(self._ids)

    def round(self) -> list[str]:
        """See `Fleet`. A kind's own name is no target while the database has no worker of it."""
        return [each for each in super().round() if _NO_HASWELL not in each]

    def _of_processes(self) -> Iterator[str]:
        """No job's process lives; a node's own, and its zygotes, do."""
        if not until(self._clock, _GONE_S, lambda: not _of_a_job()):
            yield from (f"process {process} lives" for process in _of_a_job())

    def _kill(self, account: Account) -> str:
        (kind,) = self._rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        time.sleep(self._rng.uniform(0.3, _LATEST_S))
        if kind.startswith("relaxc-") and not kill_child(kind, self._rng, self._clock, account):
            kind = "node"
        if kind == "node":
            self._kill_node(self._rng)
        elif kind in ("server", "worker"):
            victim = self._rng.choice(self.servers if kind == "server" else self.workers)
            victim.kill()
            if self._rng.random() < 0.4:
                time.sleep(5.0)
            victim.start()
        self.deaths[kind] += 1
        return kind

    def _kill_node(self, rng: random.Random) -> None:
        name = rng.choice(list(_NODES))
        self._nodes.kill(name)
        time.sleep(rng.choice((0.0, 1.0, 8.0)))  # for as long its kind may have no node
        self._nodes.start(name, BY_NAME[_NODES[name]])

    def let_go(self) -> None:
        """See `Fleet`."""
        self._over.set()
        self._watch.join()
        self._nodes.close()


def _of_a_job() -> list[str]:
    return [name for process in below() if (name := name_of(process)).startswith(_JOBS)]


if __name__ == "__main__":
    if find_spec("ray") is None:
        print("ray is not installed (pip install 'relaxc[ray]')", file=sys.stderr)
        sys.exit(2)
    sys.exit(fleet.main(OnNodes))
