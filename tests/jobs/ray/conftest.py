"""A cluster for the tests of a file: two nodes of this machine's own kind, and one of another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relaxc.service.jobs.workers.machine import Machine
from tests.jobs.workers.kinds import ZEN
from tests.ray_nodes import MACHINE, RayNodes, running_ray


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    pytest.importorskip("ray", reason="ray is not installed (pip install 'relaxc[ray]')")
    here = Machine.here()
    wanted = {"one": here, "two": here, "other": ZEN}
    with running_ray(tmp_path_factory.mktemp("ray"), wanted, TUNE_QUIET_WAIT_S=0) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: RayNodes) -> Iterator[object]:
    from relaxc.service.jobs.ray.cluster import Cluster

    opened = Cluster(nodes.address, MACHINE)
    yield opened
    opened.close()
