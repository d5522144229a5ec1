"""Convolutions of quantized images multiply bytes, with equal numbers; what bytes cannot say stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from relaxc.schedules.cuda.gemm.compute import takes_bytes
from relaxc.schedules.hardware import cpu_of
from relaxc.service.lowering import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.recognize.recognize_integer_convolutions import RecognizeIntegerConvolutions
from relaxc.service.request import CompileOptions
from tests.passes.graphs import assert_unchanged, compute, graph, operators

PASS = RecognizeIntegerConvolutions(takes_bytes)
FILTERS = np.random.default_rng(0).integers(-128, 128, (8, 16, 3, 2)).astype("int8")
IMAGE = np.random.default_rng(1).integers(0, 256, (2, 16, 7, 6)).astype("uint8")


def number(value: float, dtype: str) -> Any:
    return relax.const(value, dtype)


def convolution(
    x: Any, *, zero: int = 0, padding: Any = (1, 0, 1, 1), filters: Any = FILTERS, axis: int = 0, weight_zero: int = 0,
    **attrs: Any,
) -> Any:  # fmt: skip
    """A convolution between a dequantized image and dequantized filters, as QDQ says it."""
    image = op.dequantize(x, number(0.1, "float32"), number(zero, "uint8"), axis=1, out_dtype="float32")
    count = filters.shape[axis]
    scales = constant(np.linspace(0.01, 0.02, count).astype("float32"))
    zeros = constant(np.full(count, weight_zero, "int8"))
    weight = op.dequantize(constant(filters), scales, zeros, axis=axis, out_dtype="float32")
    return op.nn.conv2d(image, weight, padding=padding, **attrs)


def dtypes(module: Any) -> set[str]:
    """The dtypes of the convolutions' results."""
    bindings = (binding for block in module["main"].body.blocks for binding in block.bindings)
    calls = (binding.value for binding in bindings if isinstance(binding.value, relax.Call))
    return {str(call.ty.dtype) for call in calls if getattr(call.op, "name", "") == "relax.nn.conv2d"}


@pytest.mark.parametrize(
    ("zero", "attrs"),
    [(0, {}), (0, {"strides": (2, 1), "dilation": (1, 2)}), (9, {"padding": (0, 0, 0, 0)})],
    ids=["padding of a zero point of 0", "strides and dilation", "a zero point without padding"],
)
def test_convolutions_of_bytes_have_equal_numbers(zero: int, attrs: dict[str, Any]) -> None:
    module = graph(lambda x: convolution(x, zero=zero, **attrs), x=("uint8", IMAGE.shape))
    recognized = PASS(module)
    assert dtypes(recognized) == {"int32"} and dtypes(module) == {"float32"}
    (got,), (want,) = compute(recognized, IMAGE), compute(module, IMAGE)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: convolution(x, zero=9),
        lambda x: convolution(x, weight_zero=1),
        lambda x: convolution(x, axis=1),
        lambda x: convolution(x, filters=FILTERS[:, :8], groups=2),
        lambda x: convolution(x, filters=FILTERS[:4]),
    ],
    ids=["padding of another zero point", "filters with a zero point", "scales of channels", "groups", "four filters"],
)
def test_what_stays(build: Any) -> None:
    assert_unchanged(graph(build, x=("uint8", IMAGE.shape)), PASS)


def on_cpu() -> RecognizeIntegerConvolutions:
    return RecognizeIntegerConvolutions(lambda depth, filters: True, cpu_of(to_tvm(resolve("znver4"))))


@pytest.mark.parametrize("zero", [0, 9])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_on_a_cpu_images_are_padded_with_their_zero_point(zero: int, dtype: str) -> None:
    """And signed bytes are made unsigned, for whose products there is an instruction."""

    def build(x: Any) -> Any:
        image = op.dequantize(x, number(0.1, "float32"), number(zero, dtype), axis=1, out_dtype="float32")
        scales, zeros = constant(np.linspace(0.01, 0.02, 8).astype("float32")), constant(np.zeros(8, "int8"))
        return op.nn.conv2d(image, op.dequantize(constant(FILTERS), scales, zeros, 0, "float32"), padding=(1, 0, 1, 1))

    module = graph(build, x=(dtype, IMAGE.shape))
    recognized = on_cpu()(module)
    assert dtypes(recognized) == {"int32"}
    data = IMAGE if dtype == "uint8" else (IMAGE.astype("int16") - 128).astype("int8")
    (got,), (want,) = compute(recognized, data), compute(module, data)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("zero", "changes"), [(0, True), (9, False)])
def test_on_a_cpu_depthwise_ones_read_bytes_into_floats(zero: int, changes: bool) -> None:
    filters = FILTERS.reshape(-1, 1, 3, 2)[:16]
    module = graph(lambda x: convolution(x, zero=zero, filters=filters, groups=16), x=("uint8", IMAGE.shape))
    if not changes:
        assert_unchanged(module, on_cpu())
        return
    recognized = on_cpu()(module)
    assert dtypes(recognized) == {"float32"} and "astype" in operators(recognized)
    (got,), (want,) = compute(recognized, IMAGE), compute(module, IMAGE)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_on_a_cpu_groups_fill_vectors_of_sums() -> None:
    filters = np.random.default_rng(3).integers(-128, 128, (32, 16, 3, 3)).astype("int8")
    module = graph(lambda x: convolution(x, filters=filters, groups=2), x=("uint8", (1, 32, 7, 6)))
    assert dtypes(on_cpu()(module)) == {"int32"}
    few = graph(lambda x: convolution(x, filters=FILTERS[:, :8], groups=2), x=("uint8", IMAGE.shape))
    assert_unchanged(few, on_cpu())


def test_a_quantized_block_is_one_kernel_on_the_tensor_cores() -> None:
    """Bias, residual, ReLU and the quantization behind them are the convolution's epilogue, in NHWC."""

    def block(x: Any) -> Any:
        first = op.nn.relu(op.add(convolution(x), constant(np.ones((8, 1, 1), "float32"))))
        return op.quantize(first, number(0.05, "float32"), number(0, "uint8"), axis=1, out_dtype="uint8")

    spec = resolve("cuda-sm90")
    optimized = optimize(graph(block, x=("uint8", IMAGE.shape)), to_tvm(spec), CompileOptions())
    rules = [decision["rule"] for decision in schedule(optimized.module, spec).report]
    assert rules.count("cuda.conv2d_sm90") == 1
    assert set(rules) <= {"cuda.conv2d_sm90", "cuda.transposed", "cuda.elementwise"}


@pytest.mark.parametrize("name", ["cuda-sm80", "x86-64-v3"])
def test_targets_without_a_template_for_bytes_keep_floats(name: str) -> None:
    spec = resolve(name)
    optimized = optimize(graph(convolution, x=("uint8", IMAGE.shape)), to_tvm(spec), CompileOptions())
    assert not any("int32" in str(f.params[-1].dtype) for f in _prim_funcs(optimized.module))


def _prim_funcs(module: Any) -> list[Any]:
    import tvm

    return [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc) and f.params]
