"""Candidates built by nvcc; and, where there is a GPU, measured on it: what goes wrong costs its trial alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tvm

from benchmarks.gpu import gemm_cases
from relaxc.schedules.cuda.gemm.gemm_sm90 import GemmSm90
from relaxc.schedules.template import Declined
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.tuning.measure import GPU_LIMITS, Measurer
from relaxc.service.tuning.measure.builder_worker import build, known_rules
from relaxc.service.tuning.measure.messages import Build, Built
from relaxc.service.tuning.task import Task
from tests.gpu import needs_gpu
from tests.tuning.measure.bad_gpu_rules import FAULTS, RULES
from tests.tuning.measure.bad_rules import plus_one

SPEC = resolve("cuda-sm90")
BAD = "tests.tuning.measure.bad_gpu_rules"
LIMITS = replace(GPU_LIMITS, quiet_wait_s=0.0, kernel_s=3.0)

pytestmark = pytest.mark.usefixtures("cache")


def faulty() -> Task:
    """The task of the rule with the faults."""
    text, space = tvm.ir.save_json(plus_one()), {"fault": tuple(range(len(FAULTS)))}
    default, name = {"fault": 0}, RULES[0].name
    return Task("fa" * 8, "kernel", text, SPEC, "float32", name, 1, default, space, 1.0, 1.0, 1, "16384")


def product() -> Task:
    """A small product of 16-bit floats."""
    rule, func = GemmSm90(), gemm_cases.prim_func(gemm_cases.Case(1, 256, 256, 256, epilogue="bias_gelu"))
    points = rule.searched(func, to_tvm(SPEC))
    assert not isinstance(points, Declined)
    text, shapes = tvm.ir.save_json(func), "256x256 256x256 256x256"
    numbers = (points.listed[0], points.values, 3.4e7, 4e5, 1, shapes)
    return Task("ab" * 8, "product", text, SPEC, "float16", rule.name, rule.version, *numbers, points=points.listed)


def point(name: str) -> dict[str, int]:
    """The point with this fault."""
    return {"fault": FAULTS.index(name)}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_builders_need_no_gpu(fault: str, tmp_path: Path) -> None:
    task, out = faulty(), tmp_path / "kernel.so"
    made = build(Build(task.func_json, task.how(point(fault)), str(out)), SPEC, known_rules("cuda", (BAD,)))
    assert made == Built("built")
    assert out.stat().st_size < 60_000


@needs_gpu
def test_what_goes_wrong_on_a_gpu_costs_its_trial_and_a_process() -> None:
    task, names = faulty(), ("none", "wrong", "fault", "none", "hang", "none")
    with Measurer(SPEC, threads=1, builders=4, limits=LIMITS, rules=[BAD]) as measurer:
        outcomes = measurer.measure(task, [point(name) for name in names])
        assert [one.kind for one in outcomes] == ["measured", "wrong", "crashed", "measured", "crashed", "measured"]
        assert "illegal" in outcomes[2].detail and "Timeout" in outcomes[4].detail
        same = measurer.compare(task, [point("none")], rounds=5)
        assert [one.kind for one in same] == ["measured"] * 2


@needs_gpu
def test_points_of_a_product_agree_with_its_default_and_have_a_time() -> None:
    task = product()
    with Measurer(SPEC, threads=1, builders=8, limits=LIMITS) as measurer:
        measurer.build_ahead([(task, task.default)])
        outcomes = measurer.measure(task, task.points[:: max(1, task.size // 16)])
        assert {one.kind for one in outcomes} == {"measured"}
        assert all(1e-6 < (one.seconds or 0.0) < 1e-3 for one in outcomes)
        best, default = measurer.compare(task, [task.points[1]], rounds=9)
        assert best.seconds and default.seconds and max(best.spread, default.spread) < 0.5
