"""Convolutions whose input is scaled a channel (squeeze and excite): any schedule of them is right."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from tvm import te

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.conv import blocked_plan
from relaxc.schedules.cpu.conv.conv2d_blocked import Conv2dBlocked
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.operators import Conv2d
from tests.schedules.cpu.gemm.test_matmul_packed import agree, cpu_named, lanes_of, relu_of

pytestmark = pytest.mark.sampled

RULE = Conv2dBlocked()


def operator(cpu: Cpu, batch: int, blocks: int, out: int, size: tuple[int, int]) -> Conv2d:
    lanes, (height, width) = cpu.lanes(32), size
    shape = {"batch": batch, "channels": blocks * lanes, "height": height, "width": width}
    return Conv2d(**shape, filters=out * lanes, kernel=(1, 1), gated=True)


def gated(op: Conv2d, cpu: Cpu, parameters: Mapping[str, int] | None = None) -> Any:
    """A PrimFunc of a gated 1x1 convolution with a relu."""
    plan = planning.planned(op, RULE.name, parameters or blocked_plan.default(op, cpu), cpu)
    lanes = cpu.lanes(32)
    blocks, out = op.channels // lanes, op.filters // lanes
    data = te.placeholder((op.batch, blocks, op.height, op.width, lanes), name="data")
    gate = te.placeholder((op.batch, blocks, 1, 1, lanes), name="gate")
    weight = te.placeholder((out, blocks, 1, 1, lanes, lanes), name="weight")
    product = planning.computation(plan)(data, weight, gate)
    return te.create_prim_func([data, weight, gate, relu_of(product)])


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "auto"])
@pytest.mark.parametrize(("batch", "size", "out"), [(1, (7, 7), 8), (2, (7, 5), 16), (1, (28, 28), 2), (3, (13, 9), 3)])
def test_images_and_weights(name: str, batch: int, size: tuple[int, int], out: int) -> None:
    cpu = cpu_named(name)
    func = gated(operator(cpu, batch, 3, out, size), cpu)
    scaled = next(r.block for r in block_realizes(func) if r.block.name_hint == "gated")
    of_data = size[0] * size[1] < out * lanes_of(name)
    assert len(scaled.iter_vars) == (5 if of_data else 7)
    agree(RULE, func, name)


@pytest.mark.parametrize(("size", "out"), [((4, 6), 12), ((12, 14), 4)])
def test_any_point_is_right(size: tuple[int, int], out: int) -> None:
    cpu = cpu_named("auto")
    op = operator(cpu, 1, 2, out, size)
    for plan in random.Random(0).sample(planning.space(op, cpu), 4):
        agree(RULE, gated(op, cpu, plan.parameters), "auto")
