"""A tuning on a cluster: candidates are built on other nodes, and what is found is what one machine finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.compiler import prepare
from relaxc.service.config import settings
from relaxc.service.jobs.ray.cluster import Cluster
from relaxc.service.jobs.ray.resources import kind_of
from relaxc.service.jobs.ray.runner import RayRunner
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Pool
from relaxc.service.process.runner import Runner
from relaxc.service.process.sandbox.confinement import Confinement, folders_of
from relaxc.service.process.task import Flavour, Task
from relaxc.service.request import CompileRequest
from tests.jobs.ray.entries import RULED
from tests.zoo import export

_MEASURED = ("date", "host", "roofline")
LIMITS = Limits(timeout_s=1200.0, memory_bytes=8 << 30, file_bytes=1 << 30)


def tuned(runner: Runner, request: CompileRequest, workdir: Path) -> tuple[list[Any], dict[str, Any]]:
    """The records that come of it, without what is measured beside candidates, and what was told, by its name."""
    workdir.mkdir()
    options = {"trials": 10, "seed": 3, "tasks": "0-1", "durable": True}
    payload = {"request": request.to_dict(), **options}
    allowed = Confinement((*folders_of(request.model.path), settings().cache_dir / "peak"))
    task = Task(RULED, payload, workdir, Flavour(request.model.format), LIMITS, "", allowed, tunes=True)
    told: dict[str, Any] = {"far": 0}

    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "trial" and event["name"].startswith(("trial", "compare")):
            told[event["name"]] = event["value"]
        elif "far" in event:
            told["far"] = event["far"]

    runner.run(task, hear)
    records = [json.loads(line) for line in (workdir / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in each.items() if name not in _MEASURED} for each in records], told


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_records_are_those_of_one_machine(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELAXC_TUNE_QUIET_WAIT_S", "0")
    monkeypatch.setenv("RELAXC_SANDBOX", "auto")
    settings.cache_clear()
    request = prepare(export("cnn", "onnx"))
    with Pool() as pool:
        alone = tuned(pool, request, tmp_path / "alone")
    runner = RayRunner(cluster, cluster.kinds()[kind_of(Machine.here())], 1)
    shared = tuned(runner, request, tmp_path / "shared")
    assert (alone[1].pop("far"), shared[1].pop("far") > 0) == (0, True)
    assert len(alone[1]) >= 10
    assert shared[1] == alone[1]
    assert shared[0] == alone[0]
    assert any(record["parameters"] for record in alone[0])
    settings.cache_clear()
