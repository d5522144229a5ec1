"""Products of quantized operands multiply bytes; what would not be right in int32, or in bytes, stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.schedules.hardware import cpu_of
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.recognize.recognize_integer_products import RecognizeIntegerProducts
from tests.passes.graphs import assert_unchanged, compute, graph, operators

WEIGHTS = np.random.default_rng(0).integers(0, 256, (24, 16))
WEIGHTS[0, 0], WEIGHTS[1, 0], WEIGHTS[0, 1] = 0, 255, 255


def number(value: float, dtype: str) -> Any:
    return relax.const(value, dtype)


def centered(x: Any, zero: Any) -> Any:
    return op.subtract(op.astype(x, "int32"), op.astype(zero, "int32"))


@pytest.mark.parametrize("zero", [0, 128, 255])
def test_integers_with_weights_that_do_not_fit_a_byte(zero: int) -> None:
    """uint8 less a zero point is from -255 to 255: what is taken from a column is multiplied by the sum of the row."""
    module = graph(
        lambda x: op.matmul(
            centered(x, number(3, "uint8")), centered(constant(WEIGHTS.astype("uint8")), number(zero, "uint8"))
        ),
        x=("uint8", (2, 4, 24)),
    )
    data = np.random.default_rng(1).integers(0, 256, (2, 4, 24)).astype("uint8")
    recognized = RecognizeIntegerProducts()(module)
    assert ("sum" in operators(recognized)) == (zero != 128)
    np.testing.assert_array_equal(compute(recognized, data)[0], (data.astype(int) - 3) @ (WEIGHTS - zero))


def pairs(x: Any, weights: Any, *, axis: int = 1, scales: Any = 0.5) -> Any:
    left = op.dequantize(x, number(0.1, "float32"), number(7, "int32"), 1, "float32")
    scale = constant(np.asarray(scales, "float32"))
    return op.matmul(left, op.dequantize(constant(weights), scale, number(0, "int8"), axis, "float32"))


def test_scales_of_columns() -> None:
    weights, scales = (WEIGHTS - 128).astype("int8"), np.linspace(0.1, 1, 16)
    module = graph(lambda x: pairs(x, weights, scales=scales), x=("int8", (4, 24)))
    data = np.random.default_rng(1).integers(-128, 128, (4, 24)).astype("int8")
    recognized = RecognizeIntegerProducts()(module)
    assert "dequantize" not in operators(recognized)
    want = ((data.astype(int) - 7) @ weights.astype(int)) * (0.1 * scales)
    np.testing.assert_allclose(compute(recognized, data)[0], want, rtol=1e-6)


def moved(x: Any) -> Any:
    """Square weights with scales of rows, permuted to what they were."""
    weights = constant((WEIGHTS[:16] - 128).astype("int8"))
    scales, zeros = constant(np.linspace(0.1, 1, 16).astype("float32")), number(0, "int8")
    left = op.dequantize(x, number(0.1, "float32"), number(7, "int8"), 1, "float32")
    return op.matmul(left, op.permute_dims(op.dequantize(weights, scales, zeros, 0, "float32"), [0, 1]))


def low(x: Any) -> Any:
    """What is dequantized in fp16, and multiplied to fp32."""
    weights = constant((WEIGHTS - 128).astype("int8"))
    scale, zero = number(0.1, "float16"), number(0, "int8")
    both = (op.dequantize(each, scale, zero, 1, "float16") for each in (x, weights))
    return op.matmul(*both, out_dtype="float32")


def far(x: Any) -> Any:
    """A zero point that no byte has, whose share of a sum may pass int32."""
    left = op.dequantize(x, number(0.1, "float32"), number(1 << 24, "int32"), 1, "float32")
    weights = constant((WEIGHTS - 128).astype("int8"))
    return op.matmul(left, op.dequantize(weights, number(0.1, "float32"), number(0, "int8"), 1, "float32"))


def by_channel(x: Any) -> Any:
    """Data with a zero point for each column."""
    zeros = constant(np.arange(24).astype("int8"))
    left = op.dequantize(x, number(0.1, "float32"), zeros, 1, "float32")
    weights = op.dequantize(constant((WEIGHTS - 128).astype("int8")), number(0.1, "float32"), number(0, "int8"), 1)
    return op.matmul(left, weights)


@pytest.mark.parametrize(
    ("build", "dtype", "depth"),
    [
        (moved, "int8", 16),
        (low, "int8", 24),
        (far, "int8", 24),
        (by_channel, "int8", 24),
        (lambda x: pairs(x, (WEIGHTS - 128).astype("int8"), axis=0, scales=np.ones(24)), "int8", 24),
        (lambda x: pairs(x, WEIGHTS.astype("int16")), "int8", 24),
        (lambda x: pairs(x, (WEIGHTS - 128).astype("int8")), "int16", 24),
        (lambda x: pairs(x, np.ones((33100, 1), "int8")), "int8", 33100),
    ],
    ids=[
        "a permutation that moves nothing",
        "in fp16",
        "a zero point beyond bytes",
        "zero points of columns",
        "scales of rows",
        "weights of 16 bits",
        "data of 16 bits",
        "sums past int32",
    ],
)
def test_what_stays(build: Any, dtype: str, depth: int) -> None:
    assert_unchanged(graph(build, x=(dtype, (4, depth))), RecognizeIntegerProducts())


def test_floats_of_symbolic_sizes_stay_where_the_template_is_for_static_ones() -> None:
    """In fp16 they are multiplied on the tensor cores; bytes would not be."""
    module = graph(lambda x: pairs(x, (WEIGHTS - 128).astype("int8")), x=("int8", ("n", 24)))
    assert_unchanged(module, RecognizeIntegerProducts(takes=lambda depth, columns: True))
    assert "dequantize" not in operators(RecognizeIntegerProducts()(module))


def test_floats_stay_where_bytes_are_slower() -> None:
    """The template multiplies bytes by a widening multiply-add, at half of the rate of float32's FMA."""
    cpu = cpu_of(to_tvm(resolve("x86-64-v4")))
    module = graph(lambda x: pairs(x, (WEIGHTS - 128).astype("int8")), x=("int8", (4, 24)))
    assert_unchanged(module, RecognizeIntegerProducts(cpu))
    whole = graph(
        lambda x: op.matmul(
            centered(x, number(3, "uint8")), centered(constant(WEIGHTS.astype("uint8")), number(128, "uint8"))
        ),
        x=("uint8", (2, 4, 24)),
    )
    recognized = RecognizeIntegerProducts(cpu)(whole)
    assert "sum" not in operators(recognized)
    assert recognized is not whole


@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("zero", [0, -5])
def test_signed_bytes_become_unsigned_where_the_instruction_takes_those(zero: int, is_quantized: bool) -> None:
    """Zen 4 multiplies uint8 by int8; the shift is in the zero point, and where bytes are made they are made so."""
    cpu = cpu_of(to_tvm(resolve("znver4")))
    weights = (WEIGHTS - 128).astype("int8")

    def build(x: Any) -> Any:
        scale, point = number(0.1, "float32"), number(zero, "int8")
        data = op.quantize(x, scale, point, 0, "int8") if is_quantized else x
        left = op.dequantize(data, scale, point, 0, "float32")
        return op.matmul(left, op.dequantize(constant(weights), scale, number(0, "int8"), 1, "float32"))

    module = graph(build, x=("float32" if is_quantized else "int8", (4, 24)))
    recognized = RecognizeIntegerProducts(cpu)(module)
    ours = operators(recognized)
    assert "dequantize" not in ours and ours.count("quantize") == is_quantized
    assert "R.matmul(" in (text := recognized.script()) and 'dtype="uint8"' in text
    data = np.random.default_rng(1).integers(-128, 128, (4, 24))
    want = ((data - zero) @ weights.astype(int)) * (np.float32(0.1) * np.float32(0.1))
    given = ((data - zero) * 0.1).astype("float32") if is_quantized else data.astype("int8")
    np.testing.assert_allclose(compute(recognized, given)[0], want, rtol=1e-6)


def test_unsigned_bytes_become_signed_where_the_instruction_takes_those() -> None:
    """Arm's SDOT, before USDOT."""
    target = tvm.target.Target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "mattr": ["+neon", "+dotprod"]}
    )
    weights = (WEIGHTS - 128).astype("int8")
    module = graph(lambda x: pairs(x, weights), x=("uint8", (4, 24)))
    recognized = RecognizeIntegerProducts(cpu_of(target))(module)
    assert "dequantize" not in operators(recognized) and 'dtype="int8"' in recognized.script()
    data = np.random.default_rng(1).integers(0, 256, (4, 24)).astype("uint8")
    want = ((data.astype(int) - 7) @ weights.astype(int)) * 0.05
    np.testing.assert_allclose(compute(recognized, data)[0], want, rtol=1e-6)
