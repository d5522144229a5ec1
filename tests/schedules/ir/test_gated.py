"""Convolutions whose input is scaled a channel (squeeze and excite): any schedule of them is right."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from tvm import te

from schedules.cpu.conv.conv2d_blocked import Conv2dBlocked
from schedules.ir import tir
from schedules.template import Declined
from service.lowering.target import resolve, to_tvm
from service.passes.kernels import blocked_compute as compute
from tests.schedules.cpu.gemm.test_matmul_packed import agree, lanes_of, relu_of

RULE = Conv2dBlocked()


def gated(lanes: int, batch: int, blocks: int, out: int, size: tuple[int, int]) -> Any:
    """A PrimFunc of a gated 1x1 convolution with a relu."""
    data = te.placeholder((batch, blocks, *size, lanes), name="data")
    gate = te.placeholder((batch, blocks, 1, 1, lanes), name="gate")
    weight = te.placeholder((out, blocks, 1, 1, lanes, lanes), name="weight")
    none: dict[str, Any] = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
    product = compute.conv2d(data, weight, gate, most_rows=14 if lanes == 16 else 6, out_dtype="float32", **none)
    return te.create_prim_func([data, weight, gate, relu_of(product)])


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "auto"])
@pytest.mark.parametrize(("batch", "size", "out"), [(1, (7, 7), 8), (2, (7, 5), 16), (1, (28, 28), 2), (3, (13, 9), 3)])
def test_images_and_weights(name: str, batch: int, size: tuple[int, int], out: int) -> None:
    func = gated(lanes_of(name), batch, 3, out, size)
    scaled = next(r.block for r in tir.block_realizes(func) if r.block.name_hint == "gated")
    of_data = size[0] * size[1] < out * lanes_of(name)
    assert len(scaled.iter_vars) == (5 if of_data else 7)
    agree(RULE, func, name)


@pytest.mark.parametrize(("size", "out"), [((4, 6), 12), ((12, 14), 4)])
def test_any_choice_is_right(size: tuple[int, int], out: int) -> None:
    func = gated(lanes_of("auto"), 1, 2, out, size)
    choices = RULE.choices(func, to_tvm(resolve("auto")))
    assert not isinstance(choices, Declined)
    points = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    for point in random.Random(0).sample(points, 4):
        agree(RULE, func, "auto", point)
