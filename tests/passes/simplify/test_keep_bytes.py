"""What moves bytes moves bytes, and nothing is dequantized to be quantized again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.simplify.keep_bytes import KeepBytes
from tests.passes.graphs import assert_unchanged, compute, graph, operators

IMAGE = np.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8).astype("uint8")


def numbers(scale: Any = 0.1, zero: Any = 7, dtype: str = "uint8") -> tuple[relax.Constant, relax.Constant]:
    return relax.const(np.float32(scale)), relax.const(np.asarray(zero, dtype))


def dequantized(x: Any, **kwargs: Any) -> Any:
    return op.dequantize(x, *numbers(**kwargs), 1, "float32")


def quantized(x: Any, **kwargs: Any) -> Any:
    return op.quantize(x, *numbers(**kwargs), 1, "uint8")


@pytest.mark.parametrize(
    "move",
    [
        lambda x: op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=1),
        lambda x: op.reshape(x, (2, 24, 8)),
        lambda x: op.permute_dims(x, [0, 2, 3, 1]),
    ],
    ids=["a maximum over windows", "a reshape", "a transposition"],
)
@pytest.mark.parametrize("zero", [0, 7])
def test_moves_of_bytes(move: Any, zero: int) -> None:
    module = graph(lambda x: quantized(move(dequantized(x, zero=zero)), zero=zero), x=("uint8", IMAGE.shape))
    kept = KeepBytes()(module)
    assert not {"quantize", "dequantize"} & set(operators(kept))
    np.testing.assert_array_equal(compute(kept, IMAGE)[0], compute(module, IMAGE)[0])


def test_rows_of_an_embedding_stay_bytes() -> None:
    table = relax.const(IMAGE.reshape(-1, 8))
    module = graph(lambda at: op.take(dequantized(table), at, 0, mode="clip"), at=("int64", (5,)))
    kept = KeepBytes()(module)
    assert operators(kept) == ["take", "dequantize"]
    places = np.array([3, 0, 47, 3, 11])
    np.testing.assert_array_equal(compute(kept, places)[0], compute(module, places)[0])
    assert_unchanged(graph(lambda at: op.take(dequantized(table), at, 0, mode="nan"), at=("int64", (5,))), KeepBytes())


def test_another_scale_behind_a_move() -> None:
    pool = lambda x: op.nn.max_pool2d(dequantized(x), (2, 2), strides=(2, 2))  # noqa: E731
    module = graph(lambda x: quantized(pool(x), scale=0.3), x=("uint8", IMAGE.shape))
    kept = KeepBytes()(module)
    assert operators(kept) == ["nn.max_pool2d", "dequantize", "quantize"]
    np.testing.assert_array_equal(compute(kept, IMAGE)[0], compute(module, IMAGE)[0])


def test_without_moves_only_quantizations_change() -> None:
    pool = lambda x: op.nn.max_pool2d(dequantized(x), (2, 2), strides=(2, 2))  # noqa: E731
    assert_unchanged(graph(lambda x: quantized(pool(x), scale=0.3), x=("uint8", IMAGE.shape)), KeepBytes(moves=False))


def test_a_relu_that_the_quantization_does() -> None:
    module = graph(lambda x: quantized(op.nn.relu(x), zero=0), x=(1, 8))
    kept = KeepBytes()(module)
    assert operators(kept) == ["quantize"]
    x = np.array([[-np.inf, -1, -0.0, 0, 0.05, 1, np.inf, np.nan]], "float32")
    np.testing.assert_array_equal(compute(kept, x)[0], compute(module, x)[0])


@pytest.mark.parametrize(
    "build",
    [
        lambda x: quantized(dequantized(x), scale=0.2),
        lambda x: quantized(dequantized(x), zero=8),
        lambda x: op.quantize(dequantized(x), *numbers(dtype="int8"), 1, "int8"),
        lambda x: quantized(op.nn.relu(dequantized(x, zero=0)), zero=1),
        lambda x: op.nn.max_pool2d(dequantized(x, scale=-0.1), (2, 2)),
        lambda x: op.nn.avg_pool2d(dequantized(x), (2, 2)),
    ],
    ids=["a scale", "a zero point", "a type", "a relu above the lowest", "a negative scale", "a mean"],
)
def test_what_stays(build: Any) -> None:
    assert_unchanged(graph(build, x=("uint8", IMAGE.shape)), KeepBytes())
