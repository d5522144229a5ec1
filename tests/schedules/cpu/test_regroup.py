"""A fused kernel emitted anew by other plans: the same operands but the weights, and the same result."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relaxc.schedules.cpu import planning, regroup
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.operators import Matmul
from relaxc.schedules.plan import Plan, plan_of
from relaxc.schedules.template import Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions
from tests.passes.graphs import graph

pipeline.register()
R = relax.op
SPEC = resolve("auto")
TARGET = to_tvm(SPEC)
CPU = cpu_of(TARGET)


def constant(*shape: int) -> relax.Constant:
    return relax.const(np.random.default_rng(len(shape)).standard_normal(shape).astype("float32"))


def convolution(x: Any) -> Any:
    y = R.nn.conv2d(x, constant(32, 32, 3, 3), padding=1)
    return R.nn.relu(R.add(y, constant(1, 32, 1, 1)))


NETS = {
    "3x3": (convolution, (1, 32, 14, 14)),
    "product": (lambda x: R.nn.relu(R.add(R.matmul(x, constant(40, 100)), constant(100))), (24, 40)),
    "product alone": (lambda x: R.matmul(x, constant(40, 100)), (2, 12, 40)),
}


def kernel(net: str) -> tuple[Any, Plan, Any]:
    """The PrimFunc of a network's only heavy operator, its plan, and its group."""
    build, shape = NETS[net]
    made = optimize(graph(build, x=shape), TARGET, CompileOptions())
    functions = [(str(v.name_hint), f) for v, f in made.module.functions_items() if isinstance(f, tirx.PrimFunc)]
    (name, func) = next((name, func) for name, func in functions if plan_of(func) is not None)
    plan = plan_of(func)
    assert plan is not None
    return func, plan, regroup.group_of(made.unfused, name)


def run(func: Any, plan: Plan) -> Any:
    """What the scheduled kernel computes of seeded operands, the weights packed as its plan says."""
    template = planning.template(plan.template)
    assert template is not None
    made = template.apply(func, TARGET)
    assert isinstance(made, Schedule), made
    scheduled = made.func.with_attr({"global_symbol": "main", "tirx.is_scheduled": True})
    built = tirx.build(tvm.IRModule({"main": scheduled}), TARGET, pipeline=pipeline.NAME)["main"]
    at = regroup.weight_position(func)
    arrays = []
    for position, param in enumerate(func.params):
        shape = tuple(int(extent) for extent in param.shape)
        rng = np.random.default_rng(position)
        if position == at:
            weight = rng.standard_normal(regroup.weight_shape(plan.operator)).astype("float32")
            arrays.append(planning.pack(plan, weight))
            assert arrays[-1].shape == shape == planning.packed_shape(plan, weight.shape)
        else:
            arrays.append(rng.standard_normal(shape).astype("float32"))
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built(*tensors)
    return tensors[-1].numpy()


@pytest.mark.sampled("product alone", "product")
@pytest.mark.parametrize("net", NETS)
def test_every_plan_computes_the_same(net: str) -> None:
    func, plan, group = kernel(net)
    want = run(func, plan)
    plans = planning.space(plan.operator, CPU)
    assert len({planning.layout_of(each) for each in plans}) > 4
    drawn = [each for name in sorted({each.template for each in plans}) for each in _some(plans, name)]
    for other in drawn:
        got = run(regroup.emitted(group, other), other)
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max(), other


def _some(plans: list[Plan], template: str) -> list[Plan]:
    return random.Random(0).sample([plan for plan in plans if plan.template == template], 3)


def test_a_plan_survives_fusion() -> None:
    _, plan, _ = kernel("product")
    assert Plan.from_json(plan.to_json()) == plan
    assert isinstance(plan.operator, Matmul) and (plan.operator.m, plan.operator.n, plan.operator.k) == (24, 100, 40)


def test_what_has_no_plan_is_no_group() -> None:
    made = optimize(graph(lambda x: R.exp(x), x=(4, 4)), TARGET, CompileOptions())
    names = [str(v.name_hint) for v, f in made.module.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert [regroup.group_of(made.unfused, name) for name in names] == [None]
