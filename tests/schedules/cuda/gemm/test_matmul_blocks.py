"""`cuda.matmul_blocks`: what it takes and declines, its results by its own text on the CPU, and its code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from benchmarks.gpu import gemv_weights_device
from benchmarks.gpu.gemv_weights_cases import EPILOGUES, WeightsCase, prim_func
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.gemm.blocks_compute import Blocks
from relaxc.schedules.cuda.gemm.matmul_blocks import MatmulBlocks
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.cuda.simulated import run

TARGET, HOPPER = (to_tvm(resolve(name)) for name in ("cuda-sm80", "cuda-sm90"))
GPU = gpu_of(TARGET)
RULE = MatmulBlocks()
BASE = WeightsCase(3, 50, 192, 4, 64, epilogue="bias")


def point(tiles: int, warps: int, ahead: int, splits: int = 1) -> dict[str, int]:
    return {"tiles": tiles, "warps": warps, "splits": splits, "ahead": ahead}


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def simulate(case: WeightsCase, parameters: dict[str, int], folder: Path, late: int = -1) -> None:
    """Compare the text of the kernel, run on the CPU, with fp64."""
    found = RULE.match(prim_func(case))
    assert not isinstance(found, Declined)
    kernel = RULE.kernel_of(found, parameters, GPU)
    given = gemv_weights_device.inputs(vars(case), 1, "cpu")
    parts = 3 if case.zeros else 2
    out = np.full((case.m, case.n), np.nan, ml_dtypes.bfloat16 if case.out == "bfloat16" else case.out)
    arrays = [as_numpy(each) for each in given]
    run(kernel, [*arrays[: 1 + parts], out, *arrays[1 + parts :]], folder, late)
    wanted = gemv_weights_device.reference(vars(case), given).numpy()
    off = np.linalg.norm(out.astype("float64") - wanted) / np.linalg.norm(wanted)
    assert off <= gemv_weights_device.tolerance(vars(case))


# Every width of a code, kind of block, dtype, and end of a loop at least once.
SIMULATED = [
    (WeightsCase(1, 34, 192, 4, 64, epilogue="bias"), point(1, 4, 2)),
    (WeightsCase(3, 50, 160, 4, 32, zeros=True, scales="float32", epilogue="bias_silu"), point(2, 4, 2)),
    (WeightsCase(9, 16, 96, 4, 0, dtype="bfloat16", out="bfloat16"), point(1, 4, 4)),
    (WeightsCase(16, 70, 288, 8, 96, zeros=True, out="float32", epilogue="residual"), point(4, 4, 2)),
    (WeightsCase(2, 18, 64, 8, 0, zeros=True, dtype="bfloat16", out="float32"), point(2, 8, 2)),
    (WeightsCase(8, 32, 1024, 4, 128, zeros=True, dtype="bfloat16", out="bfloat16"), point(1, 4, 2)),
    (WeightsCase(3, 70, 1024, 4, 128, epilogue="bias"), point(2, 4, 2, splits=2)),
    (WeightsCase(1, 34, 2048, 8, 0), point(1, 4, 4, splits=4)),
]


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize(("case", "parameters"), SIMULATED)
def test_its_text_computes_products(tmp_path, case, parameters):
    simulate(case, parameters, tmp_path)


def test_a_late_warp_s_sums_are_waited_for(tmp_path):
    simulate(replace(BASE, k=512), point(1, 4, 2, splits=2), tmp_path, late=1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_packed_weights_are_read_as_they_were(bits, zeros):
    draw = np.random.default_rng(bits)
    weights = Blocks(50, 160, bits, 32, zeros)
    codes = draw.integers(0, 1 << bits, (50, 160)).astype(np.uint8)
    scales = draw.standard_normal((50, 5)).astype(np.float32)
    points = draw.integers(0, 1 << bits, (50, 5)).astype(np.uint8) if zeros else None
    packed = weights.pack(codes, scales, points)
    assert [each.shape for each in packed] == weights.shapes
    case = WeightsCase(1, 50, 160, bits, 32, zeros, scales="float32")
    given = [torch.empty(0), *map(torch.from_numpy, packed)]
    read = gemv_weights_device._weights(vars(case), given, torch.float64).numpy()
    zero = np.float64(1 << bits - 1) if points is None else points.repeat(32, axis=1).astype(np.float64)
    np.testing.assert_array_equal(read, (codes - zero) * scales.repeat(32, axis=1))


@pytest.mark.parametrize("target", [TARGET, HOPPER], ids=["sm80", "sm90"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_it_takes_products_with_what_is_fused(epilogue, target):
    func = prim_func(replace(BASE, epilogue=epilogue))
    made = RULE.apply(func, target, RULE.proposed(func, target))
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    early = "tirx.use_programtic_dependent_launch" in list(made.func.attrs["tirx.kernel_launch_params"])
    assert early == (target is HOPPER)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(BASE, m=17), "16 rows"),
        (replace(BASE, dtype="float32"), "16-bit"),
        (replace(BASE, n=51), "odd"),
        (replace(BASE, k=288, block=96), "parts of two blocks"),
    ],
)
def test_it_declines(case, reason):
    found = RULE.match(prim_func(case))
    assert isinstance(found, Declined) and reason in found.reason


def test_a_point_of_too_many_registers_is_declined():
    func = prim_func(BASE)
    assert isinstance(RULE.apply(func, TARGET, point(4, 4, 8)), Declined)


@pytest.mark.parametrize(("bits", "instruction"), [(4, "LOP3"), (8, "PRMT")])
def test_its_machine_code_reads_16_bytes_and_multiplies_on_tensor_cores(bits, instruction, disassembled):
    func = prim_func(replace(BASE, bits=bits))
    sass = disassembled(RULE.apply(func, HOPPER, RULE.proposed(func, HOPPER)).func)
    assert "HMMA.16816.F32" in sass and "LDG.E.128" in sass and instruction in sass
    assert "I2F" not in sass.split("HMMA")[1]
