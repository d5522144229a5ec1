"""`cuda.windows_sm90`: what it takes and declines, and how many threads it gets."""

from __future__ import annotations

import pytest
import tvm_ffi

from schedules.cuda.common.kernel import TEXT_KERNEL
from schedules.cuda.conv.compute import Windows
from schedules.cuda.windows.windows_sm90 import WindowsSm90
from schedules.template import Declined, Schedule
from service.lowering.target import resolve, to_tvm
from tests.schedules.cuda.images import prim_func

TARGET = to_tvm(resolve("cuda-sm90"))
RULE = WindowsSm90()
IMAGE = (2, 9, 11, 24)


@pytest.mark.parametrize(
    "windows",
    [
        Windows("depthwise", (3, 3), (2, 1), (1, 1), (2, 2)),
        Windows("max", (3, 2), (2, 2), (1, 0)),
        Windows("sum", (3, 3), padding=(1, 1)),
        Windows("pixels", IMAGE[1:3]),
    ],
)
@pytest.mark.parametrize("residual", [False, True])
def test_it_takes_windows_with_what_is_fused(windows, residual):
    func = prim_func(windows, IMAGE, 24, residual=residual)
    made = RULE.apply(func, TARGET)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    space = RULE.choices(func, TARGET)
    assert all(value in space[name] for name, value in made.parameters.items())
    assert tvm_ffi.structural_equal(made.func, RULE.apply(func, TARGET, made.parameters).func)


@pytest.mark.parametrize(
    ("windows", "image", "filters", "dtype", "reason"),
    [
        (Windows("max", (2, 2)), (1, 4, 4, 12), 0, "float16", "multiples of 8"),
        (Windows("sum", (9, 9)), (1, 16, 16, 8), 0, "float16", "64 taps"),
        (Windows("max", (2, 2)), (1, 4, 4, 8), 0, "float32", "16-bit"),
        (Windows("taps", (3, 3)), (1, 4, 4, 8), 8, "float16", "kind taps"),
    ],
)
def test_it_declines(windows, image, filters, dtype, reason):
    result = RULE.apply(prim_func(windows, image, filters, dtype=dtype), TARGET)
    assert isinstance(result, Declined) and reason in result.reason


def test_other_devices_are_declined():
    assert isinstance(RULE.apply(prim_func(Windows("max", (2, 2)), IMAGE), to_tvm(resolve("cuda-sm80"))), Declined)
