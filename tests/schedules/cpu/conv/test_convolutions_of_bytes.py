"""Convolutions of bytes in blocks of channels: what LLVM makes of their register tiles."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax

from relaxc.schedules.cpu.common.dot_product import STEPS
from relaxc.schedules.plan import plan_of
from relaxc.schedules.template import Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.code_target import to_code_target
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.spaces import constant, in_layouts, rule

SIZES = {"3x3": (64, 64, 3, 28), "3x3, deep": (256, 256, 3, 14), "1x1": (64, 256, 1, 28), "strided": (128, 128, 3, 28)}


@pytest.mark.parametrize("case", SIZES)
def test_no_sum_goes_to_memory_within_the_loops(case: str) -> None:
    """By the options that LLVM has in a compile: with two steps of weights 28 sums left no register for the image."""
    channels, filters, kernel, size = SIZES[case]
    taps = constant(filters, channels, kernel, kernel, dtype="int8")
    strides = (2, 2) if case == "strided" else (1, 1)

    def build(x: Any) -> Any:
        made = relax.op.nn.conv2d(x, taps, padding=kernel // 2, strides=strides, out_dtype="int32")
        return relax.op.nn.relu(relax.op.astype(made, "float32"))

    spec = resolve("znver4")
    funcs = in_layouts(build, (1, channels, size, size))("uint8", "znver4")
    (func,) = [func for func in funcs if plan_of(func) is not None]
    assert plan_of(func).parameters[STEPS] == 4
    made = rule("cpu.conv2d_blocked").apply(func, to_tvm(spec))
    assert isinstance(made, Schedule)
    code = tvm.compile(made.func, to_code_target(spec), tir_pipeline=pipeline.NAME).mod.inspect_source("asm")
    lines = code.splitlines()
    products = [at for at, line in enumerate(lines) if "vpdpbusd" in line]
    assert len(products) >= made.parameters["rows"] * made.parameters["vectors"]
    spilt = [line for line in lines[products[0] : products[-1]] if "zmm" in line and "(%rsp)" in line]
    assert not spilt
