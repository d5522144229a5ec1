"""Records held against the untuned kernels inside their model: what does not win there is taken back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import relaxc
from benchmarks.tuning import in_model
from relaxc.service.artifact.compiled import CompiledArtifact
from relaxc.service.compiler import prepare
from relaxc.service.compiling.stages import Stages
from relaxc.service.config import settings
from relaxc.service.lowering.apply import apply_rule
from relaxc.service.lowering.target import to_tvm
from relaxc.service.records.files import append, read
from relaxc.service.records.record import RecordTarget
from relaxc.service.tuner import find_tasks
from relaxc.service.tuning.measure.builder_worker import known_rules
from relaxc.service.tuning.task import Task
from tests.records.samples import record
from tests.zoo import export

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RELAXC_CACHE_DIR", str(tmp_path / "cache"))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture(scope="module")
def model() -> Path:
    return export("cnn", "onnx")


def another_point(task: Task) -> dict[str, int]:
    """The first point of the space that the template takes, the default aside."""
    if task.points:
        hows = [task.how(point) for point in task.points[1:]]
        return dict(next(how.parameters for how in hows if how.rule == task.rule))
    rule, target = known_rules(task.target.kind, ())[task.rule], to_tvm(task.target)
    for values in product(*task.space.values()):
        point = dict(zip(task.space, values, strict=True))
        if point != dict(task.default) and not isinstance(apply_rule(rule, task.func(), target, point), str):
            return point
    raise AssertionError(task.name)


@pytest.fixture
def records(model: Path, tmp_path: Path) -> Path:
    """One for each task of the model, with parameters that are not the default."""
    tasks = find_tasks(prepare(model), Stages(lambda event: None)).tasks
    made = [
        record(
            workload=task.workload,
            operator=task.operator_digest,
            target=RecordTarget.of(task.target),
            rule=task.rule,
            version=task.version,
            dtype=task.dtype,
            shapes=task.shapes,
            parameters=another_point(task),
            seconds=1e-3,
            untuned_s=2e-3,
            threads=task.target.cores,
        )
        for task in tasks
        if task.untuned is None
    ]
    assert len(made) > 1
    append(tmp_path / "records", made)
    return tmp_path / "records"


@pytest.mark.slow
def test_what_loses_in_the_model_gets_the_untuned_parameters(
    model: Path, records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {one.workload: one for one in read(records)}
    slower, *faster = sorted(before)

    def times(artifacts: list[CompiledArtifact], rounds: int) -> list[dict[str, float]]:
        return [{**dict.fromkeys(faster, 1.0), slower: 1.0}, {**dict.fromkeys(faster, 2.0), slower: 1.005}]

    monkeypatch.setattr(in_model, "_times", times)
    assert in_model.main([str(model), "--records", str(records)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["kept"], printed["taken_back"]) == (len(faster), 1)
    after = {one.workload: one for one in read(records)}
    assert {name: after[name] for name in faster} == {name: before[name] for name in faster}
    options = relaxc.CompileOptions(default_records=False)
    [plain] = [row for row in relaxc.compile(model, options=options).manifest.schedule if row["workload"] == slower]
    assert dict(after[slower].parameters) == plain["parameters"]
    assert after[slower].seconds == after[slower].untuned_s == 2e-3


@pytest.mark.slow
def test_the_command_times_both(model: Path, records: Path) -> None:
    command: list[Any] = [sys.executable, "-m", "benchmarks.tuning.in_model", model, "--records", records]
    done = subprocess.run([*command, "--rounds", "1"], cwd=ROOT, check=True, capture_output=True, text=True)
    printed = json.loads(done.stdout)
    assert printed["kept"] + printed["taken_back"] == len(list(read(records)))
    assert printed["tuned_ms"] > 0
    assert printed["untuned_ms"] > 0
