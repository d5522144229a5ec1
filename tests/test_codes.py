"""Codes against ml_dtypes: all of them as numbers, and floats at and about every one of them as codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te

from relaxc.service.codes import FORMATS, Format, code_of, number_of

FLOATS = [name for name, row in FORMATS.items() if row.is_float and row.has_zero]
WHOLE = [name for name, row in FORMATS.items() if not row.is_float]
EIGHT = [name for name in FLOATS if FORMATS[name].bits == 8]

Array = np.ndarray[Any, Any]


def computed(function: Callable[[Any], Any], data: Array) -> Array:
    """What a scalar function gives of every element, as a kernel computes it."""
    taken = te.placeholder(data.shape, str(data.dtype))
    made = te.compute(data.shape, lambda i: function(taken[i]))
    kernel = tvm.compile(te.create_prim_func([taken, made]), target="llvm")
    out = tvm.runtime.empty(data.shape, str(made.dtype))
    kernel(tvm.runtime.tensor(data), out)
    return np.asarray(out.numpy())


def every(name: str) -> Array:
    """Each byte as ml_dtypes has it."""
    return np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))


def floats(name: str, dtype: str) -> Array:
    """Every number of a format, the middles between them and their neighbours, small ones, large ones, drawn ones."""
    with np.errstate(all="ignore"):
        numbers = np.unique(every(name)[: 2 ** FORMATS[name].bits].astype("float64"))
    numbers = numbers[np.isfinite(numbers)]
    points = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, [numbers[-1] * 1.06, numbers[-1] * 1.2]])
    rng = np.random.default_rng(5)
    drawn = rng.standard_normal(20_000) * 2.0 ** rng.integers(-24, 20, 20_000)
    points = np.concatenate([points, -points, drawn]).astype(dtype)
    limits = np.array(np.inf, dtype)
    near = [np.nextafter(points, limits), np.nextafter(points, -limits)]
    return np.concatenate([points, *near, [0.0, -0.0, 1e-30, -1e30, np.inf, -np.inf, np.nan]]).astype(dtype)


@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_the_numbers_of_ml_dtypes(name: str) -> None:
    row = FORMATS[name]
    got = computed(lambda code: number_of(code, row), np.arange(256, dtype=np.uint8))
    want = every(name)[np.arange(256) & (2**row.bits - 1)].astype(row.wide)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want) & ~np.isnan(want))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_rounded_as_ml_dtypes_does(name: str, dtype: str) -> None:
    """Without saturation; what has neither infinity nor NaN saturates always."""
    data = floats(name, dtype)
    if FORMATS[name].bits < 8:
        data = data[~np.isnan(data)]
    got = computed(lambda value: code_of(value.astype("float32"), FORMATS[name], saturates=False), data)
    with np.errstate(all="ignore"):
        want = data.astype(getattr(ml_dtypes, name)).view(np.uint8)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", EIGHT)
def test_what_is_too_large_saturates(name: str) -> None:
    kind = getattr(ml_dtypes, name)
    data = floats(name, "float32")
    got = computed(lambda value: code_of(value, FORMATS[name]), data)
    largest = np.float32(ml_dtypes.finfo(kind).max)
    with np.errstate(all="ignore"):
        want = data.clip(-largest, largest).astype(kind).view(np.uint8)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_keep_their_low_bits(name: str) -> None:
    data = np.arange(-300, 300, dtype=np.int32)
    got = computed(lambda value: code_of(value, FORMATS[name]), data)
    np.testing.assert_array_equal(got, (data & (2 ** FORMATS[name].bits - 1)).astype(np.uint8))


@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturates", [True, False])
def test_powers_of_two_are_rounded_as_onnx_says(rounding: str, saturates: bool) -> None:
    """By the exact logarithm of positive floats; ONNX's table has what is beyond either end."""
    row = FORMATS["float8_e8m0fnu"]
    rng = np.random.default_rng(6)
    data = (rng.uniform(1, 2, 4000) * 2.0 ** rng.integers(-127, 127, 4000)).astype(np.float32)
    powers = np.ldexp(np.float32(1), np.arange(-127, 128)).astype(np.float32)
    data = np.concatenate([data, powers, powers[:-1] * np.float32(1.5), powers[:-1] * np.float32(1.25)])
    got = computed(lambda value: code_of(value, row, saturates=saturates, rounding=rounding), data)
    fraction, exponent = np.frexp(data.astype("float64"))
    up = {"up": fraction > 0.5, "down": np.zeros(data.shape, bool), "nearest": fraction >= 0.75}[rounding]
    want = exponent - 1 + up + 127
    np.testing.assert_array_equal(got, np.where(want > 254, 254 if saturates else 255, want))
    ends = np.array([0.0, 2.0**-140, 3.4e38, np.inf, np.nan], np.float32)
    got = computed(lambda value: code_of(value, row, saturates=saturates, rounding="nearest"), ends)
    assert got.tolist() == ([0, 0, 254, 254, 255] if saturates else [255, 255, 255, 255, 255])


def test_a_row_is_checked() -> None:
    with pytest.raises(AssertionError):
        Format(9)
