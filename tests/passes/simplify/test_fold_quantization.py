"""A quantization's scale goes into the constants before it; what it would change to no use stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.simplify.fold_quantization import FoldQuantization
from tests.passes.graphs import assert_unchanged, compute, graph, operators, weights

BIAS = constant(np.linspace(-3, 3, 8).astype("float32").reshape(8, 1, 1))
FACTOR = constant(np.linspace(0.25, 2, 8).astype("float32").reshape(8, 1, 1))
SHAPE = (2, 8, 5, 5)


def quantized(x: Any, scale: float = 0.25, zero: int = 3) -> Any:
    return op.quantize(x, relax.const(np.float32(scale)), relax.const(np.uint8(zero)), 1, "uint8")


def dequantized(x: Any, scale: Any = 0.5, zero: int = 3) -> Any:
    return op.dequantize(x, constant(np.asarray(scale, "float32")), relax.const(np.uint8(zero)), 1, "float32")


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.add(op.multiply(x, FACTOR), BIAS),
        lambda x: op.nn.relu(op.subtract(op.multiply(FACTOR, x), BIAS)),
        lambda x: op.add(op.multiply(x, FACTOR), dequantized(quantized(x))),
        lambda x: op.add(dequantized(quantized(x)), dequantized(quantized(x, 0.5), np.linspace(0.25, 2, 8), 0)),
        lambda x: op.add(op.nn.conv2d(x, weights(8, 8, 3, 3), padding=1), BIAS),
        lambda x: op.nn.max_pool2d(op.multiply(x, FACTOR), (3, 3), padding=1),
    ],
    ids=["a scale and a bias", "a difference", "a residual", "two residuals", "weights", "a maximum"],
)
@pytest.mark.parametrize("scale", [0.25, 0.3])
def test_scales_fold(build: Any, scale: float) -> None:
    """A power of 2 changes no number; another is a rounding away, and so at most a step."""
    module = graph(lambda x: quantized(build(x), scale), x=SHAPE)
    folded = FoldQuantization()(module)
    assert str(folded) != str(module)
    x = (np.random.default_rng(0).standard_normal(SHAPE) * 8).astype("float32")
    got, want = (compute(each, x)[0].astype(int) for each in (folded, module))
    apart = np.abs(got - want)
    assert apart.max() <= (scale != 0.25) and (apart > 0).mean() < 0.02


@pytest.mark.parametrize(
    "build",
    [
        quantized,
        lambda x: quantized(dequantized(quantized(x, 1.0))),
        lambda x: quantized(op.multiply(x, x)),
        lambda x: quantized(op.add(x, BIAS)),
        lambda x: quantized(op.multiply(x, FACTOR), 1.0),
        lambda x: quantized(op.multiply(x, constant(np.full((8, 1, 1), 3e38, "float32")))),
    ],
    ids=["an input", "another scale alone", "a square", "a sum with an input", "a scale of 1", "what would overflow"],
)
def test_what_stays(build: Any) -> None:
    assert_unchanged(graph(build, x=SHAPE), FoldQuantization())


def test_a_factor_is_a_part_of_the_scale() -> None:
    """So that kernels which differ in a factor are one: it would be a number in each one's code."""
    factor = constant(np.float32(0.3))
    module = graph(lambda x: quantized(op.multiply(factor, dequantized(x))), x=("uint8", SHAPE))
    folded = FoldQuantization()(module)
    assert operators(folded) == ["dequantize", "quantize"]
    x = np.random.default_rng(0).integers(0, 256, SHAPE).astype("uint8")
    assert np.abs(compute(folded, x)[0].astype(int) - compute(module, x)[0]).max() <= 1


def test_a_value_that_others_read_is_not_divided() -> None:
    def build(x: Any) -> Any:
        block = relax.BlockBuilder.current()
        scaled = block.emit(op.multiply(x, FACTOR))
        return quantized(scaled), scaled

    assert_unchanged(graph(build, x=SHAPE), FoldQuantization())
