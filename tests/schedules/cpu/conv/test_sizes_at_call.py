"""Convolutions, depthwise ones and pools of images whose batch, height and width are known at the call alone."""

from __future__ import annotations

import random
from typing import Any, Literal

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.plan import Plan, plan_of
from relaxc.schedules.template import Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions
from tests.guarded import guarded_tensor
from tests.schedules.spaces import constant, rule

pipeline.register()
R = relax.op
TARGET = "x86-64-v3"
SIZES = (1, 2, 3, 5, 6, 7, 13, 23)
"""Of one pixel, under and over the tiles of 6 columns, and primes."""


def _dense(x: Any) -> Any:
    return R.nn.relu(R.nn.conv2d(x, constant(24, 16, 3, 3), padding=2, dilation=(2, 2)))


def _strided(x: Any) -> Any:
    return R.nn.relu(R.nn.conv2d(x, constant(16, 8, 3, 3), padding=(1, 2, 1, 0), strides=(2, 1), groups=2))


def _pointwise(x: Any) -> Any:
    return R.add(R.nn.conv2d(x, constant(16, 16, 1, 1)), x)


def _depthwise(x: Any) -> Any:
    return R.nn.silu(R.nn.conv2d(x, constant(16, 1, 3, 3), padding=1, groups=16))


def _pooled(x: Any) -> Any:
    return R.nn.max_pool2d(_pointwise(x), (3, 3), strides=(2, 2), padding=1)


NETWORKS = {each.__name__: each for each in (_dense, _strided, _pointwise, _depthwise, _pooled)}


def _module(build: Any, batch: Any, height: Any, width: Any) -> Any:
    x = relax.Var("x", relax.TensorType((batch, 16, height, width), "float32"))
    block = relax.BlockBuilder()
    with block.function("main", [x]):
        with block.dataflow():
            result = block.emit_output(block.normalize(build(x)))
        block.emit_func_output(result)
    return optimize(block.get(), to_tvm(resolve(TARGET)), CompileOptions()).module


def _planned(module: Any) -> list[Any]:
    funcs = [func for func in module.functions.values() if isinstance(func, tirx.PrimFunc)]
    return [func.with_attr("global_symbol", "main") for func in funcs if plan_of(func) is not None]


def _symbols(*names: str) -> list[Any]:
    return [tirx.Var(name, "int64") for name in names]


def _built(func: Any) -> Any:
    """The kernel of a plan."""
    plan = plan_of(func)
    made = rule(plan.template).apply(func, to_tvm(resolve(TARGET)))
    assert isinstance(made, Schedule), made
    return tvm.compile(made.func, to_tvm(resolve(TARGET)), tir_pipeline=pipeline.NAME)


def _call(built: Any, side: Literal["start", "end"], *arrays: Any) -> Any:
    """What a kernel computes; its result is the last of the buffers."""
    tensors = [guarded_tensor(each, side) for each in arrays]
    built(*tensors)
    return tensors[-1].numpy()


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_kernel_for_unknown_sizes_computes_what_that_of_known_ones_does(name: str) -> None:
    draw = random.Random(name)
    known_of = {}
    (func,) = _planned(_module(NETWORKS[name], *_symbols("n", "h", "w")))[-1:]
    for _ in range(3):
        known_of[draw.choice((1, 2)), draw.choice(SIZES), draw.choice(SIZES)] = None
    built = _built(func)
    for batch, height, width in known_of:
        (known,) = _planned(_module(NETWORKS[name], batch, height, width))[-1:]
        shapes = [tuple(int(size) for size in each.shape) for each in known.params]
        values = np.random.default_rng(0)
        arrays = [values.standard_normal(shape).astype("float32") for shape in shapes]
        assert plan_of(known).template == plan_of(func).template
        expected = _call(_built(known), "end", *arrays)
        sides: tuple[Literal["start", "end"], ...] = ("start", "end")
        for side in sides:
            np.testing.assert_allclose(_call(built, side, *arrays), expected, rtol=1e-4, atol=1e-4)


def test_the_sum_of_an_unknown_width_asks_nothing() -> None:
    """No block that computes has a predicate, and none chooses: the tiles end where the image does."""
    (func,) = _planned(_module(_pointwise, *_symbols("n", "h", "w")))
    made = rule("cpu.conv2d_blocked").apply(func, to_tvm(resolve(TARGET)))
    assert isinstance(made, Schedule)
    sums = [each for each in block_realizes(made.func) if each.block.name_hint == "conv2d_update"]
    assert len(sums) == 3
    assert all(tir.as_int(each.predicate) == 1 and not tir.conditions(each.block.body) for each in sums)


def test_a_plan_of_unknown_sizes_is_replayed() -> None:
    (func,) = _planned(_module(_strided, *_symbols("n", "h", "w")))
    plan = plan_of(func)
    assert (plan.operator.batch, plan.operator.height, plan.operator.width) == (0, 0, 0)
    again = Plan.from_json(plan.to_json())
    asked, target = rule(plan.template), to_tvm(resolve(TARGET))
    assert again == plan
    assert asked.refusal(again.operator, again.parameters, cpu_of(target)) == ""
    points = asked.points(func, target)
    assert points.size > 1 and all(not asked.refusal(plan.operator, each, cpu_of(target)) for each in points.listed)
