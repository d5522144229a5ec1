"""Products of bytes read their weights by columns, with equal numbers, and reach the tensor cores in a compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from relaxc.service.lowering import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.layout.bytes_by_columns import BytesByColumns
from relaxc.service.request import CompileOptions
from tests.passes.graphs import assert_unchanged, compute, graph, ops

WEIGHTS = np.random.default_rng(0).integers(-128, 128, (32, 16)).astype("int8")


def product(x: Any, weights: Any = WEIGHTS) -> Any:
    return op.matmul(x, constant(weights), out_dtype="int32")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_weights_are_turned(dtype: str) -> None:
    module = graph(product, x=(dtype, (2, 3, 32)))
    turned = BytesByColumns()(module)
    assert ops(turned)[0] == "call_tir"
    data = np.random.default_rng(1).integers(0, 127, (2, 3, 32)).astype(dtype)
    (got,), (want,) = compute(turned, data), compute(module, data)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got, data.astype("int64") @ WEIGHTS.astype("int64"))


@pytest.mark.parametrize(
    ("dtype", "shape", "build"),
    [
        ("int8", (4, 24), lambda x: product(x, WEIGHTS[:24])),
        ("int8", (4, 32), lambda x: product(x, WEIGHTS[:, :12])),
        ("float32", (4, 32), lambda x: op.matmul(x, constant(WEIGHTS.astype("float32")))),
    ],
    ids=["depth of 24", "12 columns", "floats"],
)
def test_what_stays(dtype: str, shape: tuple[int, ...], build: Any) -> None:
    assert_unchanged(graph(build, x=(dtype, shape)), BytesByColumns())


def quantized(x: Any, zero: int) -> Any:
    """A linear layer between quantizations, as QDQ says it."""
    from tvm import relax

    def number(value: float, dtype: str) -> Any:
        return relax.const(value, dtype)

    left = op.dequantize(x, number(0.1, "float32"), number(zero, "uint8"), axis=-1, out_dtype="float32")
    scales = constant(np.linspace(0.01, 0.02, 16).astype("float32"))
    zeros = constant(np.zeros(16, "int8"))
    right = op.dequantize(constant(WEIGHTS), scales, zeros, axis=1, out_dtype="float32")
    sums = op.add(op.matmul(left, right), constant(np.ones(16, "float32")))
    return op.quantize(op.nn.relu(sums), number(0.05, "float32"), number(0, "uint8"), axis=-1, out_dtype="uint8")


@pytest.mark.parametrize("zero", [0, 7])
def test_a_quantized_layer_is_one_kernel_on_the_tensor_cores(zero: int) -> None:
    spec = resolve("cuda-sm90")
    optimized = optimize(graph(lambda x: quantized(x, zero), x=("uint8", (64, 32))), to_tvm(spec), CompileOptions())
    scheduled = schedule(optimized.module, spec)
    assert [decision["rule"] for decision in scheduled.report] == ["cuda.gemm_sm90"]
