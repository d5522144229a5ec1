"""The default tiles of products and convolutions, beside what an H100 took for them."""

from __future__ import annotations

import pytest

from benchmarks.gpu import conv_cases, gemm_cases
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.gemm_cases import Case
from relaxc.schedules.cuda.conv.conv2d_sm90 import Conv2dSm90
from relaxc.schedules.cuda.gemm.gemm_sm90 import GemmSm90
from relaxc.service.lowering.target import resolve, to_tvm

TARGET = to_tvm(resolve("cuda-sm90"))
RESIDUAL = "bias_residual_relu"
AROUND = (1, 1, 1, 1)

# Of the points that were timed each is the fastest, or within a fiftieth of it: rows, columns, atoms, splits, cluster
# and share.
MEASURED = [
    (ConvCase("pointwise", (32, 14, 14, 1024), 512), (192, 128, 1, 1, 1, 1)),  # 132 tiles: one for each SM
    (ConvCase("pointwise", (32, 28, 28, 512), 128), (192, 128, 1, 1, 1, 1)),
    (ConvCase("pointwise", (32, 14, 14, 256), 1024, epilogue=RESIDUAL), (192, 128, 1, 1, 1, 1)),
    (ConvCase("pointwise", (32, 28, 28, 128), 512, epilogue=RESIDUAL), (64, 128, 1, 1, 1, 2)),
    (ConvCase("pointwise", (32, 56, 56, 64), 256, epilogue=RESIDUAL), (64, 128, 1, 1, 1, 2)),
    (ConvCase("taps", (32, 14, 14, 512), 512, (3, 3), (2, 2), AROUND), (64, 128, 2, 1, 1, 1)),
    (ConvCase("taps", (32, 7, 7, 512), 512, (3, 3), (1, 1), AROUND), (64, 128, 2, 1, 1, 1)),
    (ConvCase("pointwise", (32, 28, 28, 512), 256), (128, 128, 1, 0, 1, 1)),  # 262 tiles of 192 rows were slower
    (ConvCase("pointwise", (32, 14, 14, 1024), 256), (128, 128, 1, 1, 1, 1)),
    (ConvCase("pointwise", (32, 7, 7, 512), 2048, epilogue=RESIDUAL), (128, 256, 1, 1, 2, 1)),
    (ConvCase("pointwise", (32, 56, 56, 64), 64), (128, 64, 1, 0, 1, 1)),
    (ConvCase("pointwise", (32, 56, 56, 256), 64), (128, 64, 1, 0, 1, 1)),
    (ConvCase("taps", (32, 56, 56, 64), 64, (3, 3), (1, 1), AROUND), (128, 64, 1, 0, 1, 1)),
    (Case(1, 4096, 768, 3072, epilogue="bias_residual"), (128, 192, 1, 1, 2, 1)),
    (Case(1, 4096, 4096, 1024, epilogue="bias_gelu"), (128, 128, 1, 0, 1, 1)),
    (Case(1, 6304, 768, 3072), (192, 192, 1, 1, 1, 1)),  # 132 tiles: tiles of 128 rows have a wave and a half
    (Case(1, 6304, 768, 768), (192, 192, 1, 1, 1, 1)),
    (Case(1, 6272, 768, 768), (192, 192, 1, 1, 1, 1)),
    (Case(1, 6304, 2304, 768), (192, 192, 1, 1, 1, 1)),
    (Case(1, 6304, 3072, 768), (192, 192, 1, 1, 1, 1)),
    (Case(1, 6304, 3072, 768, epilogue="bias_gelu"), (192, 192, 1, 1, 1, 1)),
    (Case(1, 4096, 2304, 768), (128, 192, 1, 1, 2, 1)),
    (Case(1, 1024, 1024, 1024), (64, 128, 1, 1, 1, 1)),  # too few steps for two at once
]


@pytest.mark.parametrize(("case", "wanted"), MEASURED, ids=str)
def test_the_default_is_the_tile_that_was_fastest(case, wanted):
    func = (gemm_cases if isinstance(case, Case) else conv_cases).prim_func(case)
    rule = Conv2dSm90() if getattr(case, "kind", "") == "taps" else GemmSm90()
    found = rule.apply(func, TARGET).parameters
    names = ("rows", "columns", "atoms", "splits", "cluster", "share")
    assert tuple(found[name] for name in names) == wanted


@pytest.mark.parametrize("n", [8, 64, 72, 1024])
@pytest.mark.parametrize("m", [1, 72, 136, 20000])
def test_every_default_is_of_the_space(m, n):
    func = gemm_cases.prim_func(Case(1, m, n, 128, epilogue="bias_residual"))
    rule = GemmSm90()
    found, space = rule.proposed(func, TARGET), rule.points(func, TARGET).values
    assert all(found[name] in choices for name, choices in space.items())
