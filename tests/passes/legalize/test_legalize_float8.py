"""Quantization to e4m3 and back, by bits, as ml_dtypes and ONNX round."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tests.passes.graphs import compute, graph

FP8 = ml_dtypes.float8_e4m3fn


def number(value: float, dtype: str = "float32") -> relax.Expr:
    return relax.const(value, dtype)


def legalized(build, **inputs):
    from relaxc.service.passes.legalize.legalize import Legalize

    return Legalize([])(graph(build, **inputs))


def rounded(x):
    """Through 8 bits and back."""
    low = op.quantize(x, number(1), number(0, "int32"), axis=0, out_dtype="float8_e4m3fn")
    return op.dequantize(low, number(1), number(0, "int32"), axis=0, out_dtype="float32")


def test_every_number_of_8_bits_stays_itself() -> None:
    every = np.arange(256, dtype=np.uint8).view(FP8).astype(np.float32)
    (got,) = compute(legalized(rounded, x=(256,)), every)
    np.testing.assert_array_equal(got, every)


def test_others_are_rounded_to_the_nearest_and_halves_to_even() -> None:
    every = np.sort(np.arange(0x7F, dtype=np.uint8).view(FP8).astype(np.float64))
    halves = (every[1:] + every[:-1]) / 2
    near = np.concatenate([halves, np.nextafter(halves.astype("f"), 1e9), np.nextafter(halves.astype("f"), -1e9)])
    draw = np.random.default_rng(0)
    values = np.concatenate([near, draw.standard_normal(3000) * 100, draw.standard_normal(3000) * 0.01])
    values = np.concatenate([values, -values]).astype(np.float32)
    (got,) = compute(legalized(rounded, x=values.shape), values)
    np.testing.assert_array_equal(got, np.clip(values, -448, 448).astype(FP8).astype(np.float32))


def test_what_is_too_large_becomes_the_largest_and_nan_stays() -> None:
    values = np.float32([448, 449, 464, 465, 1e9, np.inf, -1e9, -np.inf, np.nan, 0.0, -0.0, 1e-30, -1e-30])
    (got,) = compute(legalized(rounded, x=values.shape), values)
    want = np.float32([448, 448, 448, 448, 448, 448, -448, -448, np.nan, 0.0, -0.0, 0.0, -0.0])
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[-4:]), np.signbit(want[-4:]))


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_are_one_for_each_index_of_an_axis(axis: int) -> None:
    draw = np.random.default_rng(1)
    values = draw.standard_normal((5, 7)).astype(np.float32)
    scale = draw.uniform(0.01, 0.1, values.shape[axis]).astype(np.float32)

    def build(x):
        scales, zero = relax.const(scale), number(0, "int32")
        low = op.quantize(x, scales, zero, axis=axis, out_dtype="float8_e4m3fn")
        return op.dequantize(low, scales, zero, axis=axis, out_dtype="float32")

    (got,) = compute(legalized(build, x=values.shape), values)
    along = np.expand_dims(scale, 1 - axis)
    np.testing.assert_array_equal(got, (values / along).astype(FP8).astype(np.float32) * along)
