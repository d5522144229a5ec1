"""A small model tuned for real: found, measured, recorded, compiled from the records, killed and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.compiler import prepare
from relaxc.service.compiling.stages import Stages
from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, MachineMismatch
from relaxc.service.lowering.target import resolve
from relaxc.service.records.files import append, read
from relaxc.service.records.record import RecordSet
from relaxc.service.request import CompileOptions, CompileRequest, Precision
from relaxc.service.tuner import find_tasks, run
from relaxc.service.tuning import measure
from relaxc.service.tuning.options import TuneOptions, select
from relaxc.service.tuning.plan import Progress
from relaxc.service.tuning.run import Candidate, Start
from relaxc.service.tuning.session import Session
from tests.records.samples import record
from tests.zoo import export


@pytest.fixture(scope="module")
def request_() -> CompileRequest:
    """A convolution, a pooling and a matrix product of fixed sizes."""
    return prepare(export("cnn", "onnx"))


@pytest.fixture(autouse=True)
def no_wait_for_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times decide nothing here, and other tests make noise."""
    monkeypatch.setenv("RELAXC_TUNE_QUIET_WAIT_S", "0")
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


class Events(list[dict[str, Any]]):
    """What a run emits."""

    def __call__(self, event: dict[str, Any]) -> None:
        self.append(event)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self if event["event"] == kind]


def tuned(request: CompileRequest, workdir: Path, **options: Any) -> Events:
    events = Events()
    run(request, TuneOptions(**{"trials": 3, "into": str(workdir.parent / "records"), **options}), workdir, events)
    return events


def test_tasks_are_the_prim_funcs_that_have_parameters(request_: CompileRequest) -> None:
    found = find_tasks(request_, Stages(lambda event: None))
    rules = [task.rule for task in found.tasks]
    assert "cpu.conv2d_blocked" in rules
    assert all(len(task.space) > 0 and task.weight >= 1 for task in found.tasks)
    assert all(task.default.keys() == task.space.keys() for task in found.tasks)
    assert all(one.reason for one in found.untunable)
    convolutions = [task for task in found.tasks if task.rule == "cpu.conv2d_blocked"]
    assert all(task.weight_operands and task.weight_bytes > 0 for task in convolutions)
    again = find_tasks(request_, Stages(lambda event: None))
    assert [task.workload for task in again.tasks] == [task.workload for task in found.tasks]


def test_a_record_whose_kernel_does_not_run_is_taken_out(request_: CompileRequest, workdir: Path) -> None:
    events, into = Events(), workdir.parent / "records"
    found = find_tasks(request_, Stages(lambda event: None))
    session = Session(request_, TuneOptions(into=str(into)), found, None, workdir, events.append)
    one, other = found.tasks[:2]
    kept = [
        record(
            workload=task.workload,
            target=session.target,
            rule=task.rule,
            version=task.version,
            parameters=dict(task.default),
            threads=session.threads,
        )
        for task in (one, other)
    ]
    append(into, kept)
    session._strike(Candidate(one, Start(0.0, standing=({**one.default, "tasks": -1}, 1e-3)), Progress(1, 0.0, None)))  # type: ignore[arg-type]
    assert list(read(into)) == list(RecordSet(kept))  # it is about another point
    session._strike(Candidate(one, Start(0.0, standing=(one.default, 1e-3)), Progress(1, 0.0, None)))  # type: ignore[arg-type]
    assert list(read(into)) == [kept[1]]
    assert "is removed" in events.of("log")[0]["message"]


@pytest.mark.slow
def test_a_machine_without_a_gpu_lists_the_tasks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaxc.service.machine.gpu", lambda: None)
    request = prepare(export("mlp", "onnx"), target="cuda-sm90", options=CompileOptions(precision=Precision.FP16))
    events = Events()
    run(request, TuneOptions(list_only=True), Path("nowhere"), events)
    [listed] = events.of("result")
    products = [row for row in listed["tasks"] if row["rule"] == "cuda.gemm_sm90"]
    assert products and all(row["points"] > 1 and row["limit_s"] > 0 for row in products)


def test_symbolic_sizes_are_no_tasks_and_say_so() -> None:
    symbolic = prepare(export("mlp", "onnx", dynamic=True))
    found = find_tasks(symbolic, Stages(lambda event: None))
    assert any("--shape" in one.reason for one in found.untunable)
    name, shape = _first_input(symbolic)
    fixed = replace(
        symbolic, options=CompileOptions(shapes=((name, tuple(8 if isinstance(d, str) else d for d in shape)),))
    )
    assert len(find_tasks(fixed, Stages(lambda event: None)).tasks) > len(found.tasks)


def _first_input(request: CompileRequest) -> tuple[str, tuple[Any, ...]]:
    from relaxc.service import frontend

    info = frontend.inspect(request.model.path, request.model.format)
    return info.signature.inputs[0].name, info.signature.inputs[0].shape


def test_a_run_leaves_records_a_report_and_a_curve(workdir: Path) -> None:
    events = tuned(prepare(export("mlp", "onnx")), workdir)
    result = events[-1]
    assert result["event"] == "result"
    assert result["files"] == ["records.jsonl", "report.json", "curve.svg"]
    assert (workdir / "curve.svg").read_text().startswith("<svg ")
    report = json.loads((workdir / "report.json").read_text())
    assert all(row["best_s"] is not None for row in report["tasks"])
    records = read(workdir.parent / "records")
    assert {record.workload for record in records} == {row["workload"] for row in report["tasks"]}
    assert records == read(workdir / "records.jsonl")
    assert all(record.seconds <= (record.untuned_s or 0.0) for record in records)
    metrics = events.of("metric")
    assert {metric["task"] for metric in metrics} == set(range(len(report["tasks"])))
    assert events.of("progress")[-1]["done"] == report["trials"]


@pytest.mark.slow
def test_a_compile_uses_what_was_found(request_: CompileRequest, workdir: Path) -> None:
    from relaxc.service import compiler

    tuned(request_, workdir, trials=1)
    options = CompileOptions(records=(str(workdir.parent / "records"),), default_records=False, require_tuned="all")
    events = Events()
    compiler.run(replace(request_, options=options), workdir, events)
    assert events[-1]["event"] == "result"


@pytest.mark.slow
def test_what_is_on_record_is_left_alone_unless_asked(request_: CompileRequest, workdir: Path) -> None:
    tuned(request_, workdir, trials=64, tasks="0")
    task = json.loads((workdir / "report.json").read_text())["tasks"][0]
    assert task["done"] in (
        "every point was measured",
        "nothing more expected",
        "at the roofline",
        "too little to gain",
    )
    tuned(request_, workdir, tasks="0")
    second = json.loads((workdir / "report.json").read_text())
    if task["trials"] > 1:
        assert second["tasks"] == []
        assert [record["workload"] for record in second["on_record"]] == [task["workload"]]
    tuned(request_, workdir, tasks="0", again=True)
    assert len(json.loads((workdir / "report.json").read_text())["tasks"]) == 1


class Killed(BaseException):
    """Stands for `kill -9` of the tuner."""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The points that were measured; the run dies at the fifth."""
    points: list[str] = []
    whole = measure.Measurer.measure

    def noted(self: Any, task: Any, asked: Any, ended: Any) -> Any:
        def end(outcome: Any) -> None:
            ended(outcome)
            points.append(f"{task.workload} {sorted(outcome.point.items())}")
            if len(points) == 5:
                raise Killed

        return whole(self, task, asked, end)

    monkeypatch.setattr(measure.Measurer, "measure", noted)
    yield points


@pytest.mark.slow
def test_a_killed_run_resumes_where_it_was(request_: CompileRequest, workdir: Path, measured: list[str]) -> None:
    with pytest.raises(Killed):
        tuned(request_, workdir)
    tuned(request_, workdir, resume=True)
    assert len(measured) == len(set(measured))
    report = json.loads((workdir / "report.json").read_text())
    assert report["trials"] == len(measured)
    assert report["new_trials"] == len(measured) - 5


def test_a_machine_of_another_kind_measures_nothing(request_: CompileRequest, workdir: Path) -> None:

    foreign = replace(request_, target=resolve("aarch64"))
    with pytest.raises(MachineMismatch, match="cannot measure"):
        tuned(foreign, workdir)


def test_tasks_are_selected_by_number() -> None:
    assert select("0,3-5,4", 6) == [0, 3, 4, 5]
    with pytest.raises(InvalidOption, match="0 to 5"):
        select("6", 6)


@pytest.mark.parametrize(
    "wrong",
    [{"trials": 0}, {"time_s": -1.0}, {"tasks": "x"}, {"rpc_tracker": "host:1"}, {"rpc_key": "k"}, {"seed": -1}],
    ids=str,
)
def test_options_outside_their_domain_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        TuneOptions(**wrong)


def test_options_survive_json() -> None:
    options = TuneOptions(time_s=60.0, records=("a",), rpc_tracker="[::1]:9190", rpc_key="board")
    assert TuneOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options
    assert options.tracker == ("::1", 9190)
    with pytest.raises(InvalidOption, match="wrong type"):
        TuneOptions.from_dict({"trials": "many"})
    with pytest.raises(InvalidOption, match="unknown"):
        TuneOptions.from_dict({"trails": 3})
