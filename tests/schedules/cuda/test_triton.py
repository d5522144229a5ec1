"""A Triton kernel's PrimFunc: what it depends on, the launches to choose from, and what a report says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm

from relaxc.schedules.cuda.triton import Triton
from relaxc.schedules.cuda.triton_call import CONFIGURATION, Argument, Launch, TritonCall, call_of
from relaxc.schedules.ir.describe import kernel_of
from relaxc.schedules.ir.work import work_of
from relaxc.schedules.template import Declined, Points
from relaxc.service.lowering.schedule import points_of, schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.tuning.measure.builder_worker import known_rules
from relaxc.service.tuning.tasks import tasks_of
from tests.triton_kernels import KERNELS, call

SPEC = resolve("cuda-sm90")
TARGET = to_tvm(SPEC)
TYPES = [((10, 100), "float16"), ((10, 100), "float16")]
WIDE = Launch((2, 1, 1), {"WIDTH": 512}, {"num_warps": 8, "num_stages": 3})


def test_the_prim_func_has_the_whole_call() -> None:
    made = call().prim_func(TYPES)
    assert call_of(made) == call()
    assert TritonCall.from_json(call().to_json()) == call()
    work = work_of(made)
    assert (work.size_bytes, work.written_bytes) == (4000, 2000)


@pytest.mark.parametrize(
    "other",
    [
        call(KERNELS + "\n# changed\n"),
        replace(call(), triton="3.8.0"),
        replace(call(), launches=(WIDE,)),
        replace(call(), arguments=(*call().arguments[:-1], Argument(value=0.25))),
    ],
)
def test_its_workload_is_of_everything_that_it_depends_on(other: TritonCall) -> None:
    mine = kernel_of(call().prim_func(TYPES)).digest
    assert mine == kernel_of(call().prim_func(TYPES)).digest
    assert mine != kernel_of(other.prim_func(TYPES)).digest


def test_the_first_launch_is_untuned_and_each_may_be_chosen() -> None:
    func = replace(call(), launches=(*call().launches, WIDE, *call().launches)).prim_func(TYPES)
    untuned, other = Triton().apply(func, TARGET), Triton().apply(func, TARGET, {"configuration": 1})
    assert not isinstance(untuned, Declined) and not isinstance(other, Declined)
    assert (untuned.func.attrs[CONFIGURATION], other.func.attrs[CONFIGURATION]) == (0, 1)
    with pytest.raises(ValueError, match="may be one of"):
        Triton().apply(func, TARGET, {"configuration": 3})
    points = Triton().searched(func, TARGET)
    assert isinstance(points, Points) and points.listed == ({"configuration": 0}, {"configuration": 1})
    assert points_of(func, "cuda.triton", SPEC) == 3


def test_a_tuning_searches_its_launches_alone() -> None:
    func = replace(call(), launches=(*call().launches, WIDE)).prim_func(TYPES).with_attr("global_symbol", "scaled")
    module = tvm.IRModule({"scaled": func})
    report, rules = schedule(module, SPEC).report, known_rules("cuda", ())
    [task] = tasks_of(module, report, {}, SPEC, TARGET, rules, weight_operands={}, weight_bytes=0).tasks
    assert (task.rule, task.templates, task.points) == ("cuda.triton", (), ({"configuration": 0}, {"configuration": 1}))


@pytest.mark.parametrize("level", [0, 2])
def test_the_report_names_it(level: int) -> None:
    module = tvm.IRModule({"scaled": call().prim_func(TYPES)})
    [row] = schedule(module, SPEC, opt_level=level).report
    assert (row["kernel"], row["rule"], row["parameters"]) == (
        "triton: mine.scaled",
        "cuda.triton",
        {"configuration": 0},
    )
