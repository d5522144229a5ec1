"""A PrimFunc that only the fallback takes is tuned with traces: measured, recorded, and compiled from its record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

from relaxc.service.config import settings
from relaxc.service.lowering.build import KERNEL, build_kernel
from relaxc.service.lowering.schedule import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.records.record import Record, RecordSet, RecordTarget
from relaxc.service.request import TargetSpec
from relaxc.service.tuning.generic import beginning_with, recorded, seeded, standing
from relaxc.service.tuning.measure import MeasureLimits, Measurer
from relaxc.service.tuning.measure.builder_worker import known_rules
from relaxc.service.tuning.task import CANDIDATE, How, Task
from relaxc.service.tuning.tasks import tasks_of
from tests.records.samples import record

SPEC = resolve("auto")


def argmax() -> Any:
    """Two values are reduced at once: no template takes it."""
    x = te.placeholder((16, 96), name="x")
    return te.create_prim_func([x, topi.argmax(x, axis=1)]).with_attr("global_symbol", "argmax")


def found(spec: TargetSpec = SPEC) -> tuple[Task, ...]:
    module = tvm.IRModule({"argmax": argmax()})
    rules = known_rules(spec.kind, ())
    report, calls = schedule(module, spec).report, {"argmax": 2}
    return tasks_of(module, report, calls, spec, to_tvm(spec), rules, weight_operands={}, weight_bytes=0).tasks


@pytest.fixture(scope="module")
def task() -> Task:
    [task] = found()
    return seeded(task, to_tvm(SPEC), 3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RELAXC_CACHE_DIR", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


def record_of(task: Task, how: How, **fields: Any) -> Record:
    usual = {
        "workload": task.workload,
        "dtype": task.dtype,
        "shapes": task.shapes,
        "rule": how.rule,
        "version": how.version,
        "parameters": dict(how.parameters),
        "trace": how.trace,
        "target": RecordTarget.of(SPEC),
        "threads": SPEC.cores,
    }
    return record(**{**usual, **fields})


def test_what_only_the_fallback_takes_is_a_task_of_the_generic_space(task: Task) -> None:
    assert (task.rule, task.version, task.weight, task.default) == ("metaschedule", 1, 2, {CANDIDATE: 0})
    assert task.untuned is not None and task.untuned.rule == "cpu.fallback"
    assert task.how({CANDIDATE: 0}) == task.untuned
    assert len(task.traces) > 8 and task.space == {CANDIDATE: tuple(range(len(task.traces) + 1))}


def test_the_seed_says_which_candidates(task: Task) -> None:
    [again] = found()
    assert seeded(again, to_tvm(SPEC), 3) == task
    assert seeded(again, to_tvm(SPEC), 4).traces != task.traces


@pytest.mark.slow
def test_candidates_are_measured_and_the_record_is_compiled(task: Task) -> None:
    points = [{CANDIDATE: place} for place in (1, 2, 3, 0)]
    limits = MeasureLimits(build_s=60, run_s=60, measure_s=0.01, max_runs=5, quiet_wait_s=0)
    with Measurer(SPEC, threads=1, builders=1, limits=limits) as measurer:
        outcomes = measurer.measure(task, points)
        [broken] = measurer.measure(replace(task, traces=("[[],",)), [{CANDIDATE: 1}])
    assert [outcome.kind for outcome in outcomes] == ["measured"] * 4
    assert broken.kind == "refused" and "its trace is refused" in broken.detail
    won = record_of(task, task.how(points[1]))
    made = schedule(tvm.IRModule({"argmax": argmax()}), SPEC, records=RecordSet([won]))
    [row] = made.report
    assert (row["rule"], row["version"], row["source"], row["parameters"]) == ("metaschedule", 1, "record", {})
    assert row["record"]["digest"] == won.digest and row["passed_over"] == []


def test_the_numbers_of_a_replayed_trace_are_right(task: Task, tmp_path: Path) -> None:
    records = RecordSet([record_of(task, task.how({CANDIDATE: 2}))])
    made = schedule(tvm.IRModule({"argmax": argmax()}), SPEC, records=records)
    build_kernel(made.module["argmax"], SPEC, tmp_path / "argmax.so")
    x = np.random.default_rng(0).standard_normal((16, 96)).astype("float32")
    out = tvm.runtime.empty((16,), "int32")
    tvm.runtime.load_module(str(tmp_path / "argmax.so"))[KERNEL](tvm.runtime.tensor(x), out)
    np.testing.assert_array_equal(out.numpy(), x.argmax(axis=1))


def test_a_broken_trace_is_passed_over(task: Task) -> None:
    steps, decisions = json.loads(task.traces[0])
    broken = {
        "cut short": (task.traces[0][:-9], "its trace is refused: "),
        "hostile": (
            json.dumps([[*steps, ["Annotate", ["b0", 1], ["pragma_import_c"], []]], decisions]),
            "the key is not one of those",
        ),
        "for something else": (json.dumps([[["GetSBlock", [], ["gone", "main"], ["b0"]]], []]), "does not apply"),
        "empty": ("", "its trace is refused: "),
    }
    for trace, reason in broken.values():
        how = How(task.rule, task.version, {}, trace)
        [row] = schedule(tvm.IRModule({"argmax": argmax()}), SPEC, records=RecordSet([record_of(task, how)])).report
        assert (row["rule"], row["source"]) == ("cpu.fallback", "rule")
        [[_, said]] = row["passed_over"]
        assert said.startswith("metaschedule: ") and reason in said


def test_another_version_is_not_replayed(task: Task) -> None:
    later = record_of(task, replace(task.how({CANDIDATE: 1}), version=2))
    [row] = schedule(tvm.IRModule({"argmax": argmax()}), SPEC, records=RecordSet([later])).report
    assert row["source"] == "rule" and "has version 1" in row["passed_over"][0][1]


def test_what_stands_on_record_is_the_first_candidate(task: Task) -> None:
    target, last = RecordTarget.of(SPEC), task.traces[-1]
    by_trace = record_of(task, task.how({CANDIDATE: len(task.traces)}), seconds=2.0)
    assert task.untuned is not None
    untuned = record_of(task, task.untuned, seconds=1.0)
    assert standing(task, RecordSet([by_trace]), target, SPEC.cores) == by_trace
    assert standing(task, RecordSet([by_trace, untuned]), target, SPEC.cores) == untuned
    assert standing(task, RecordSet([]), target, SPEC.cores) is None
    first = beginning_with(last, task)
    assert first.traces[0] == last and set(first.traces) == set(task.traces)
    only, point = recorded(task, by_trace)
    assert only.how(point).trace == last
    assert recorded(task, untuned)[1] == {CANDIDATE: 0}
