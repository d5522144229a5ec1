"""`cuda.conv2d_sm80`: what it takes and declines, its results by its own text on the CPU, and its code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from benchmarks.gpu import conv_cases, conv_device
from benchmarks.gpu.conv_cases import ConvCase
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.conv.compute import Windows
from relaxc.schedules.cuda.conv.conv2d_sm80 import Conv2dSm80, kernel
from relaxc.schedules.cuda.gemm.tile_sm80 import WarpTile, refusal
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.gpu import needs_gpu
from tests.schedules.cuda.images import prim_func
from tests.schedules.cuda.simulated import run

SPEC = resolve("cuda-sm80")
TARGET, HOPPER = to_tvm(SPEC), to_tvm(resolve("cuda-sm90"))
GPU = gpu_of(TARGET)
RULE = Conv2dSm80()
SQUARE = Windows("taps", (3, 3), padding=(1, 1))
AROUND = (1, 1, 1, 1)
SLOW = pytest.mark.slow

# Strides, dilations and padding of each side; channels and filters that end in a tile; taps within a step of the sum.
SIMULATED = [
    (
        ConvCase("taps", (2, 7, 9, 24), 40, (3, 3), (1, 1), AROUND, epilogue="bias_residual_relu"),
        (32, 32, 32, 2, 2, 32),
    ),
    (
        ConvCase("taps", (1, 9, 11, 8), 16, (3, 2), (2, 1), (1, 0, 1, 1), (1, 2), epilogue="none", out="float32"),
        (64, 64, 64, 3, 1, 32),
    ),
    (
        ConvCase("taps", (2, 5, 6, 24), 40, (3, 2), (1, 2), (1, 0, 1, 1), (2, 1), dtype="float32", out="float32"),
        (32, 32, 64, 3, 2, 32),
    ),
    (ConvCase("rows", (1, 12, 26, 8), 24, (7, 7), (2, 2), (3, 0, 3, 0), epilogue="bias_clip"), (64, 32, 64, 2, 4, 32)),
    pytest.param(
        *(ConvCase("taps", (1, 12, 12, 72), 72, strides=(2, 2), epilogue="bias"), (128, 128, 32, 3, 1, 64)), marks=SLOW
    ),
    pytest.param(
        *(ConvCase("taps", (3, 5, 5, 16), 8, (5, 5), (1, 1), (2, 2, 2, 2), epilogue="none"), (32, 64, 32, 4, 2, 64)),
        marks=SLOW,
    ),
    pytest.param(
        *(ConvCase("taps", (1, 30, 9, 64), 64, (2, 2), (9, 3), (0, 1, 1, 0), epilogue="bias"), (32, 64, 64, 2, 1, 32)),
        marks=SLOW,
    ),
    pytest.param(*(ConvCase("rows", (2, 6, 19, 16), 32, (3, 5), (1, 3)), (32, 32, 32, 4, 2, 32)), marks=SLOW),
]


@pytest.mark.parametrize(("case", "point"), SIMULATED)
def test_its_text_computes_convolutions(tmp_path, case, point):
    found = RULE.match(conv_cases.prim_func(case))
    assert not isinstance(found, Declined)
    tile = WarpTile(*point)
    assert not refusal(tile, found)
    said = {**asdict(case), "size": case.size, "weight": case.weight}
    given = conv_device.inputs(said, 1, "cpu")
    out = np.full(conv_device.result(said)[0], np.nan, case.out)
    arrays = [each.numpy() for each in given]
    run(kernel(found, tile, GPU), [*arrays[:2], out, *arrays[2:]], tmp_path)
    wanted = conv_device.reference(said, given).double().numpy()
    near = {"rtol": 2e-6, "atol": 2e-6} if case.dtype == "float32" else {"rtol": 2e-3, "atol": 4e-3}
    np.testing.assert_allclose(out.astype("float64"), wanted, **near)


@pytest.mark.parametrize("target", [TARGET, HOPPER], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("windows", "image", "k"),
    [
        (SQUARE, (2, 14, 14, 72), 9 * 72),
        (Windows("taps", (3, 2), (2, 1), (1, 0), (1, 2)), (3, 9, 11, 8), 6 * 8),
        (Windows("rows", (7, 7), (2, 2), (3, 0)), (1, 20, 26, 8), 7 * 56),
    ],
)
def test_it_takes_convolutions_with_what_is_fused(windows, image, k, target):
    func = prim_func(windows, image, 40, residual=True)
    found = RULE.match(func)
    assert not isinstance(found, Declined)
    assert (found.m, found.n, found.k) == (image[0] * found.result[0] * found.result[1], 40, k)
    made = RULE.apply(func, target)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    assert tvm_ffi.structural_equal(made.func, RULE.apply(func, target, made.parameters).func)


@pytest.mark.parametrize(
    ("windows", "image", "filters", "reason"),
    [
        (SQUARE, (1, 9, 9, 12), 8, "multiples of 8"),
        (Windows("taps", (17, 1)), (1, 19, 9, 8), 8, "larger than 16x16"),
        (Windows("rows", (3, 3), padding=(1, 1)), (1, 9, 9, 8), 8, "one piece"),
        (Windows("max", (3, 3)), (1, 9, 9, 8), 0, "kind max"),
    ],
)
def test_it_declines(windows, image, filters, reason):
    result = RULE.apply(prim_func(windows, image, filters), TARGET)
    assert isinstance(result, Declined) and reason in result.reason


def test_on_hopper_it_takes_what_the_copy_engine_cannot_feed():
    from relaxc.schedules.cuda import RULES

    steps = [(SQUARE, "cuda.conv2d_sm90"), (Windows("taps", (3, 3), (9, 9)), "cuda.conv2d_sm80")]
    for windows, first in steps:
        func = prim_func(windows, (1, 19, 19, 8), 8)
        assert next(rule.name for rule in RULES if isinstance(rule.apply(func, HOPPER), Schedule)) == first


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_machine_code_multiplies_on_tensor_cores_and_spills_nothing(dtype, disassembled):
    func = prim_func(SQUARE, (32, 28, 28, 128), 128, dtype=dtype)
    sass = disassembled(RULE.apply(func, TARGET).func, SPEC)
    assert "HMMA.16816.F32" in sass and "LDGSTS" in sass and "LDSM" in sass
    assert "LDL" not in sass and "STL" not in sass


@needs_gpu
def test_numbers_on_the_gpu(tmp_path: Path):
    """Odd sizes with parameters from all over the space, against fp64; equal bits on repetition."""
    from benchmarks.gpu.build import build
    from benchmarks.gpu.measure import measure

    entries = build(tmp_path, suites=["conv_sm80"])
    rows = {row["id"]: row for row in measure(tmp_path, tmp_path, only="conv_sm80") if row["status"] == "done"}
    kernels = [entry for entry in entries if entry.suite == "conv_sm80"]
    assert not [entry.id for entry in kernels if not rows.get(entry.id, {}).get("right")]
