"""A real compile on a node: it is the one that this machine makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relaxc.service.artifact.key import key_for
from relaxc.service.artifact.store import Store
from relaxc.service.compiler import places_read, prepare
from relaxc.service.config import settings
from relaxc.service.jobs.once import COMPILE_ENTRY, Ask, CompileOnce
from relaxc.service.jobs.ray.cluster import Cluster
from relaxc.service.jobs.ray.resources import kind_of
from relaxc.service.jobs.ray.runner import RayRunner
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Cancellation, Pool
from relaxc.service.process.runner import Runner
from relaxc.service.process.sandbox.confinement import Confinement, folders_of
from relaxc.service.process.workspace import Workspace
from relaxc.service.request import CompileRequest
from tests.zoo import export

LIMITS = Limits(timeout_s=600.0, memory_bytes=8 << 30, file_bytes=1 << 30)


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As the nodes have it."""
    monkeypatch.setenv("RELAXC_SANDBOX", "auto")
    settings.cache_clear()
    yield
    settings.cache_clear()


def compiled(runner: Runner, request: CompileRequest, folder: Path) -> str:
    """The digest of what comes of it."""
    with Workspace(folder / "jobs") as workspace:
        once = CompileOnce(Store(folder, 1 << 40), runner, workspace, LIMITS, COMPILE_ENTRY)
        allowed = Confinement(reads=(*folders_of(request.model.path), *places_read(request)))
        ask = Ask(request, key_for(request), "model", allowed, 0.0)
        return once(ask, lambda event: None, Cancellation()).digest


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_an_artifact_is_that_of_one_machine(cluster: Cluster, tmp_path: Path, format: str) -> None:
    request = prepare(export("mlp", format))
    with Pool() as pool:
        here = compiled(pool, request, tmp_path / "here")
    runner = RayRunner(cluster, cluster.kinds()[kind_of(Machine.here())], 1)
    assert compiled(runner, request, tmp_path / "there") == here
