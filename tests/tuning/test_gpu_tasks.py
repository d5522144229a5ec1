"""Kernels for a GPU as tasks: their points, their records, and compiles that use these without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
import tvm
import tvm_ffi

from benchmarks.gpu import gemm_cases
from relaxc.schedules.cuda.conv.compute import Windows
from relaxc.schedules.cuda.gemm.gemm_sm90 import GemmSm90
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.errors import InvalidOption, MachineMismatch
from relaxc.service.lowering.schedule import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.machine import Gpu
from relaxc.service.records.files import append, read
from relaxc.service.records.record import Record, RecordSet, RecordTarget
from relaxc.service.request import CompileOptions, CompileRequest, ModelFormat, ModelRef
from relaxc.service.tuner import run
from relaxc.service.tuning.hints import standing
from relaxc.service.tuning.listing import listed
from relaxc.service.tuning.measure.builder_worker import known_rules
from relaxc.service.tuning.options import TuneOptions
from relaxc.service.tuning.session import Session
from relaxc.service.tuning.task import TEMPLATE, Task
from relaxc.service.tuning.tasks import FoundTasks, tasks_of
from tests.records.samples import record
from tests.schedules.cuda.images import prim_func
from tests.tuning.synthetic import FakeMeasurer

SPEC = resolve("cuda-sm90")
TARGET = to_tvm(SPEC)
PRODUCT = gemm_cases.Case(1, 128, 192, 192, epilogue="bias_tanh_gelu")
STEM = Windows("rows", (3, 3), (2, 2), (1, 0), (1, 1))


def functions() -> dict[str, Any]:
    """A product, and a first layer, which two templates take."""
    stem = prim_func(STEM, (2, 16, 18, 8), 64)
    made = {"product": gemm_cases.prim_func(PRODUCT), "stem": stem}
    return {name: func.with_attr("global_symbol", name) for name, func in made.items()}


@pytest.fixture(scope="module")
def found() -> FoundTasks:
    module = tvm.IRModule(functions())
    report, rules = schedule(module, SPEC).report, known_rules("cuda", ())
    return tasks_of(module, report, {"product": 12}, SPEC, TARGET, rules, weight_operands={}, weight_bytes=0)


def record_of(task: Task, point: Any, **fields: Any) -> Record:
    how = task.how(point)
    same = {name: getattr(task, name) for name in ("workload", "dtype", "shapes")}
    usual = {"rule": how.rule, "version": how.version, "parameters": dict(how.parameters), "threads": 1}
    return record(**{**same, **usual, "target": RecordTarget.of(SPEC), **fields})


def test_each_point_of_a_task_is_another_kernel(found: FoundTasks) -> None:
    product = found.tasks[0]
    rule, func = GemmSm90(), functions()["product"]
    assert (product.rule, product.weight, product.points[0]) == ("cuda.gemm_sm90", 12, product.default)
    every, distinct = rule.points(func, TARGET), rule.searched(func, TARGET)
    assert not isinstance(every, Declined) and not isinstance(distinct, Declined)
    assert product.points == distinct.listed and 2 < product.size < every.size
    form = rule.match(func)
    assert not isinstance(form, Declined)
    kernels = [rule.kernel_of(form, point, gpu_of(TARGET)) for point in product.points]
    assert len({kernel.identity for kernel in kernels if not isinstance(kernel, Declined)}) == product.size


def test_all_templates_that_take_a_kernel_are_searched(found: FoundTasks) -> None:
    stem = found.tasks[1]
    assert [named.rule for named in stem.templates] == ["cuda.lines_sm90", "cuda.conv2d_sm90"]
    assert stem.how(stem.default).rule == stem.rule == "cuda.lines_sm90"
    other = next(point for point in stem.points if point[TEMPLATE] == 1)
    how = stem.how(other)
    assert set(how.parameters) == {"rows", "columns", "atoms", "splits", "cluster", "group", "ahead", "share"}
    assert stem.point(how.rule, how.parameters) == other


def test_the_list_needs_no_gpu_and_has_the_limit_of_the_hardware_row(found: FoundTasks) -> None:
    rows = listed(found, None)["tasks"]
    flops = 2 * 128 * 192 * 192
    assert rows[0]["limit_s"] >= flops / 1e15 and rows[0]["points"] == found.tasks[0].size
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["product", "stem"])
def test_a_record_is_replayed_without_a_gpu(name: str, found: FoundTasks, tmp_path: Path) -> None:
    """The last point: of the first layer, one of the template that does not go first."""
    task = next(task for task in found.tasks if task.name == name)
    won = record_of(task, task.points[-1])
    append(tmp_path, [won])
    assert (tmp_path / "cuda-sm_90a" / f"{won.rule}.jsonl").exists()
    known = read(tmp_path)
    assert standing(task, known, RecordTarget.of(SPEC), 1) == won
    module = tvm.IRModule({name: functions()[name]})
    [row] = (made := schedule(module, SPEC, records=known)).report
    assert (row["source"], row["rule"], row["parameters"]) == ("record", won.rule, dict(won.parameters))
    applied = known_rules("cuda", ())[won.rule].apply(functions()[name], TARGET, won.parameters)
    assert isinstance(applied, Schedule)
    assert tvm_ffi.structural_equal(made.module[name].without_attr("tirx.is_scheduled"), applied.func)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"version": 1}, "the record is for 1"), ({"parameters": {"rows": 96}}, "no longer takes its parameters")],
)
def test_a_record_of_another_template_is_passed_over_by_name(
    fields: dict[str, Any], reason: str, found: FoundTasks
) -> None:
    product = found.tasks[0]
    old = record_of(product, product.points[-1], **fields)
    module = tvm.IRModule({"product": functions()["product"]})
    [row] = schedule(module, SPEC, records=RecordSet([old])).report
    assert (row["source"], row["parameters"]) == ("rule", dict(product.default))
    [[digest, why]] = row["passed_over"]
    assert digest == old.digest and reason in why


class Measurer(FakeMeasurer):
    """One that may be entered, and knows what was built ahead."""

    ahead: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def build_ahead(self, wanted: Sequence[tuple[Task, Any]]) -> None:
        """Note whose default it is."""
        assert all(point == task.default for task, point in wanted)
        self.ahead = tuple(task.name for task, _ in wanted)


def test_a_run_keeps_what_won_with_the_gpu_that_it_won_on(
    found: FoundTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = found.tasks[0]
    measurer = Measurer({"product": lambda point: 2e-5 if dict(point) == dict(product.default) else 1e-5})
    monkeypatch.setattr("relaxc.service.tuning.session.Measurer", lambda *_, **__: measurer)
    monkeypatch.setattr("relaxc.service.machine.gpu", lambda: Gpu("A GPU", (9, 0)))
    model = ModelRef(ModelFormat.ONNX, "0" * 64, 1, Path("model.onnx"))
    request = CompileRequest(model, SPEC, CompileOptions())
    options = TuneOptions(trials=3, into=str(tmp_path / "records"))
    session = Session(request, options, replace(found, tasks=(product,)), None, tmp_path, lambda event: None)
    session.tune()
    assert measurer.ahead == ("product",)
    [won] = read(tmp_path / "records")
    assert (won.rule, won.host, won.threads, won.trials) == ("cuda.gemm_sm90", "A GPU", 1, 3)
    assert (won.seconds, won.untuned_s) == (1e-5, 2e-5) and product.has(won.parameters)
    assert won.roofline is not None and 0 < won.roofline < 1


@pytest.mark.parametrize("given", [{"threads": 2}, {"rpc_tracker": "there:9190", "rpc_key": "k"}])
def test_what_means_nothing_on_a_gpu_is_refused_by_name(given: dict[str, Any]) -> None:
    model = ModelRef(ModelFormat.ONNX, "0" * 64, 1, Path("model.onnx"))
    with pytest.raises(InvalidOption, match=f"--{next(iter(given)).replace('_', '-')}"):
        run(CompileRequest(model, SPEC, CompileOptions()), TuneOptions(**given), Path("nowhere"), _unheard)


def test_a_machine_without_such_a_gpu_tunes_nothing_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaxc.service.machine.gpu", lambda: None)
    model = ModelRef(ModelFormat.ONNX, "0" * 64, 1, Path("model.onnx"))
    with pytest.raises(MachineMismatch, match=r"compute capability 9\.0"):
        run(CompileRequest(model, SPEC, CompileOptions()), TuneOptions(), Path("nowhere"), _unheard)


def _unheard(event: dict[str, Any]) -> None:
    pass
