"""Reductions over one element with something behind them, by the fallbacks of GPUs and CPUs."""

from __future__ import annotations

import pytest

from benchmarks.gpu import conv_cases, gemm_cases, rows_cases
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.gemm_cases import Case
from benchmarks.gpu.rows_cases import RowsCase
from relaxc.schedules import cpu
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.single import without_single_reductions
from relaxc.schedules.template import Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.cuda.sequential import assert_means_the_same, scheduled_by

_FUNCS = {
    "product": lambda: gemm_cases.prim_func(Case(2, 5, 7, 1, "float16", "float32", "bias_silu")),
    "rms_norm": lambda: rows_cases.prim_func(RowsCase("rms_norm", (9, 1), "float32", "float32")),
    "depthwise": lambda: conv_cases.prim_func(
        ConvCase("depthwise", (1, 4, 5, 3), 3, padding=(0, 0, 1, 1), strides=(2, 2), out="float32", epilogue="bias")
    ),
    "max": lambda: conv_cases.prim_func(ConvCase("max", (2, 3, 1, 5), 5, out="float32", epilogue="bias_residual_relu")),
}


@pytest.mark.parametrize("name", _FUNCS)
def test_what_follows_is_computed_once_on_a_gpu(name):
    func = _FUNCS[name]()
    assert_means_the_same(scheduled_by("cuda.fallback", func), func)


@pytest.mark.parametrize("name", _FUNCS)
def test_what_follows_is_computed_once_on_a_cpu(name):
    func = _FUNCS[name]()
    result = cpu.RULES[-1].apply(func, to_tvm(resolve("x86-64-v3")))
    assert isinstance(result, Schedule), result
    assert_means_the_same(result.func, func)


def test_longer_reductions_stay():
    func = gemm_cases.prim_func(Case(1, 5, 7, 2, "float16", "float32", "bias"))
    made = without_single_reductions(func)
    assert [realize.block.init is not None for realize in block_realizes(made)] == [True, False]
