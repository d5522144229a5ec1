"""Each kernel's precision has a reason: the model's own, an option, or what a kernel is."""

from __future__ import annotations

from typing import Any

import pytest

from relaxc.service.artifact.precisions import CALIBRATED, QUANTIZED, precisions
from relaxc.service.request import CompileOptions, Precision


def row(function: str, dtype: str, rule: str = "cpu.matmul_packed") -> dict[str, Any]:
    return {"function": function, "dtype": dtype, "rule": rule}


BF16 = CompileOptions(precision=Precision.BF16)


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        (row("fused_matmul_add", "float32"), CompileOptions(), "as the model"),
        (row("fused_matmul_add", "float32"), CompileOptions(precision=Precision.FP32), "--precision fp32"),
        (row("fused_conv2d_relu", "uint8+int8+int32"), CompileOptions(), QUANTIZED),
        (row("quantize1", "float32+uint8", "cpu.injective"), CompileOptions(), "moves or makes codes"),
        (row("matmul", "float32+int32", "cpu.matmul_blocks"), CompileOptions(weights="int4"), "--weights int4"),
        (row("matmul", "float32", "cpu.matmul_blocks"), CompileOptions(), "the model's weights are codes"),
        (row("matmul", "bfloat16"), BF16, "--precision bf16: operands"),
        (row("layer_norm", "bfloat16"), BF16, "--precision bf16: stored for, or by, a product"),
        (row("attention", "float32"), BF16, "a product of two computed values"),
        (row("attention", "float32+bfloat16"), BF16, "a product of two computed values"),
        (row("attention", "bfloat16+float32"), BF16, "--precision bf16: operands"),
        (row("softmax", "float16"), CompileOptions(), "as the model; arithmetic between products in float32"),
    ],
)
def test_why(given: dict[str, Any], options: CompileOptions, why: str) -> None:
    (found,) = precisions([given], options).values()
    assert found["dtype"] == given["dtype"] and found["why"].startswith(why)


def test_what_was_calibrated_says_so() -> None:
    found = precisions([row("conv2d", "uint8+int8+int32")], CompileOptions(), calibrated=True)
    assert found["conv2d"]["why"] == CALIBRATED
