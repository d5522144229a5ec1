"""Convolutions of bfloat16 in blocks of channels, by the instruction that takes pairs, beside numpy's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tvm import relax

from relaxc.schedules.cpu.common.dot_product import STEPS
from relaxc.schedules.plan import plan_of
from tests.schedules.spaces import PAIRS, agree, constant, in_layouts, points, rule

R = relax.op

CASES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "3x3": ((20, 33, 3), {"padding": 1}),
    "1x1": ((33, 50, 1), {}),
    "strided": ((17, 40, 3), {"padding": (0, 1, 2, 1), "strides": (2, 1)}),
    "dilated": ((32, 16, 3), {"padding": 2, "dilation": (2, 2)}),
    "first": ((3, 20, 7), {"padding": 3, "strides": (2, 2)}),
    "groups": ((32, 64, 3), {"padding": 1, "groups": 2}),
}


def kernels(case: str, size: tuple[int, int], target: str) -> list[Any]:
    """The kernels that follow plans of `relu(conv2d(x, W))`, its result in bfloat16."""
    (channels, filters, kernel), geometry = CASES[case]
    taps = constant(filters, channels // geometry.get("groups", 1), kernel, kernel, dtype="bfloat16")
    build = partial(_convolution, taps=taps, geometry=geometry)
    found = in_layouts(build, (1, channels, *size))("bfloat16", target)
    return [func for func in found if plan_of(func) is not None]


def _convolution(x: Any, *, taps: Any, geometry: dict[str, Any]) -> Any:
    return R.nn.relu(R.nn.conv2d(x, taps, **geometry))


@pytest.mark.sampled(most=6)
@pytest.mark.parametrize("target", [PAIRS], ids=["avx512bf16"])
@pytest.mark.parametrize("size", [(9, 14), (7, 7), (13, 31)])
@pytest.mark.parametrize("case", CASES)
def test_a_convolution_is_numpys_of_rounded_operands(case: str, size: tuple[int, int], target: str) -> None:
    (func,) = kernels(case, size, target)
    asked = rule("cpu.conv2d_blocked")
    assert plan_of(func).parameters[STEPS] == 2
    agree(func, asked, target, points(func, asked, target, most=2))


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_without_the_instruction_the_operands_are_widened_first(target: str) -> None:
    (func,) = kernels("3x3", (9, 14), target)
    assert STEPS not in plan_of(func).parameters
    assert plan_of(func).operator.operands == ("float32", "float32")


@pytest.mark.parametrize("target", [PAIRS, "x86-64-v3"], ids=["avx512bf16", "x86-64-v3"])
def test_depthwise_ones_read_bfloat16_and_sum_in_fp32(target: str) -> None:
    build = partial(_convolution, taps=constant(36, 1, 3, 3, dtype="bfloat16"), geometry={"padding": 1, "groups": 36})
    (func,) = [func for func in in_layouts(build, (1, 36, 9, 14))("bfloat16", target) if plan_of(func) is not None]
    assert plan_of(func).operator.operands == ("bfloat16", "float32")
    asked = rule("cpu.depthwise_blocked")
    agree(func, asked, target, points(func, asked, target, most=2))


@pytest.mark.parametrize("target", [PAIRS, "x86-64-v3"], ids=["avx512bf16", "x86-64-v3"])
@pytest.mark.parametrize("padding", [0, 1])
def test_maxima_are_of_bfloat16(target: str, padding: int) -> None:
    def build(x: Any) -> Any:
        return R.nn.max_pool2d(_convolution(x, taps=taps, geometry={}), (3, 3), strides=(2, 2), padding=padding)

    taps = constant(36, 20, 1, 1, dtype="bfloat16")
    funcs = in_layouts(build, (1, 20, 9, 14))("bfloat16", target)
    (pool,) = [func for func in funcs if (plan := plan_of(func)) is not None and plan.operator.kind == "pool2d"]
    assert plan_of(pool).operator.operands == ("bfloat16",)
    asked = rule("cpu.pooling")
    agree(pool, asked, target, points(pool, asked, target, most=2))


@pytest.mark.slow
@pytest.mark.parametrize("target", [PAIRS], ids=["avx512bf16"])
@pytest.mark.parametrize("case", ["3x3", "1x1", "first"])
def test_every_point_is_right(case: str, target: str) -> None:
    (func,) = kernels(case, (9, 14), target)
    asked = rule("cpu.conv2d_blocked")
    agree(func, asked, target, points(func, asked, target, most=1000))
