"""The tuner changes algorithm and layout: it finds the right ones where the default is forced to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.conv import blocked_plan
from relaxc.schedules.hardware import Cpu, cpu_of
from relaxc.schedules.operators import Conv2d, Matmul, Operator
from relaxc.schedules.plan import Plan
from relaxc.service.lowering import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.records.record import RecordSet, RecordTarget
from relaxc.service.request import CompileOptions
from relaxc.service.tuner import tasks_in
from relaxc.service.tuning.hints import standing
from relaxc.service.tuning.journal import Journal
from relaxc.service.tuning.measure import Measurer
from relaxc.service.tuning.plan import Budget
from relaxc.service.tuning.provenance import Provenance
from relaxc.service.tuning.run import Candidate, Start, TuningRun
from relaxc.service.tuning.task import Task
from tests.passes.graphs import graph

Make = Callable[..., Measurer]
R = relax.op
SPEC = resolve("auto")
TRIALS = 24


class Wrong:
    """A planner whose plans are right but slow: a direct 3x3 convolution, and a register tile of one vector."""

    def __init__(self, cpu: Cpu) -> None:
        self.cpu = cpu

    def plan(self, operator: Operator) -> Plan:
        if isinstance(operator, Conv2d):
            return planning.planned(operator, "cpu.conv2d_blocked", blocked_plan.default(operator, self.cpu), self.cpu)
        return planning.planned(operator, "cpu.matmul_packed", _narrow(operator, self.cpu), self.cpu)


def _narrow(op: Matmul, cpu: Cpu) -> dict[str, int]:
    layout = {"block": cpu.lanes(op.sum_bits), "vectors": 1, "padded": op.m, "rows": 1}
    return {**layout, "tiles": 1, "panels": 1, "depth": op.k, "unroll": 1}


def constant(*shape: int) -> relax.Constant:
    return relax.const(np.random.default_rng(1).standard_normal(shape).astype("float32"))


def task_of(build: Any, shape: tuple[int, ...]) -> Task:
    """The task of a network's only heavy operator, planned wrong."""
    target = to_tvm(SPEC)
    made = optimize(graph(build, x=shape), target, CompileOptions(), planner=Wrong(cpu_of(target)))
    found = tasks_in(made, schedule(made.module, SPEC).report, SPEC)
    (task,) = [task for task in found.tasks if task.templates]
    return task


def searched(task: Task, measurer: Make, folder: Path) -> Candidate:
    with Journal(folder / "journal", resume=False) as journal:
        run = TuningRun([task], [Start(0.0)], measurer(), journal, budget=Budget(TRIALS))
        (candidate,) = run.run()
    assert candidate.progress.failed == 0
    assert candidate.verdict is not None and candidate.verdict.seconds < candidate.verdict.untuned_s
    return candidate


@pytest.mark.slow
@pytest.mark.timeout(1200)  # times decide it, so it is not for the sample that CI takes
def test_the_right_algorithm_of_a_convolution(measurer: Make, tmp_path: Path) -> None:
    task = task_of(lambda x: R.nn.relu(R.nn.conv2d(x, constant(64, 64, 3, 3), padding=1)), (1, 64, 28, 28))
    assert task.how(task.default).rule == "cpu.conv2d_blocked"
    candidate = searched(task, measurer, tmp_path)
    assert candidate.verdict is not None
    assert task.how(candidate.verdict.point).rule == "cpu.winograd"
    made = Provenance(RecordTarget.of(SPEC), 1, 0, "here").record(candidate)
    assert made.rule == "cpu.winograd" and made.workload == task.workload
    assert standing(task, RecordSet([made]), made.target, 1) == made
    assert task.point(made.rule, made.parameters) == candidate.verdict.point


@pytest.mark.slow
@pytest.mark.timeout(1200)  # times decide it, so it is not for the sample that CI takes
def test_the_right_panel_width_of_a_product(measurer: Make, tmp_path: Path) -> None:
    task = task_of(lambda x: R.nn.relu(R.matmul(x, constant(384, 384))), (96, 384))
    candidate = searched(task, measurer, tmp_path)
    assert candidate.verdict is not None
    assert candidate.verdict.point["vectors"] > 1 == task.default["vectors"]
    assert candidate.verdict.point["rows"] > 1
