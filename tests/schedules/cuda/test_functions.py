"""The fast functions of `hopper.cuh`, read as Python: their errors over a dense grid, NaN, and what saturates."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess

import numpy as np
import pytest

from relaxc.schedules.cuda.common.kernel import text_of

FLOAT = np.float32


def exact_power(x):
    """Return 2**x as the device has it: subnormal results are zero."""
    found = np.exp2(np.asarray(x, np.float64)).astype(FLOAT)
    return np.where(found < np.finfo(FLOAT).tiny, FLOAT(0), found)


NAMES = {
    "FLOAT": FLOAT,
    "fabsf": np.abs,
    "copysignf": np.copysign,
    "exp2_fast": exact_power,
    "reciprocal_fast": lambda x: FLOAT(1) / x,
    "fmaf": lambda a, b, c: (np.float64(a) * np.float64(b) + np.float64(c)).astype(FLOAT),
}


def function(name):
    """Return the C function of one float as a function of arrays: its body is a Python block but for the types."""
    body = re.search(
        rf"DEV float {name}\(float x\) \{{(.*?)\}}", text_of("relaxc.schedules.cuda.common", "hopper.cuh"), re.S
    )
    text = re.sub(r"\b(\d+\.\d*(?:e[-+]\d+)?)f\b", r"FLOAT(\1)", body[1]).replace("const float ", "")
    lines = [line.strip() for line in text.replace("\n", " ").split(";") if line.strip()]
    found = dict(NAMES)
    exec("def call(x):\n" + "".join(f"    {line}\n" for line in lines), found)  # noqa: S102, our own text
    return found["call"]


REAL = {
    "erf_fast": np.vectorize(math.erf),
    "tanh_fast": np.tanh,
    "sigmoid_fast": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
}


@pytest.mark.parametrize("name", REAL)
def test_an_error_is_less_than_one_in_a_million(name):
    x = np.concatenate([np.linspace(-9, 9, 60_001), np.geomspace(1e-38, 1e38, 400), -np.geomspace(1e-38, 1e38, 400)])
    x = x.astype(FLOAT)
    with np.errstate(over="ignore", divide="ignore"):
        found = function(name)(x)
    assert found.dtype == FLOAT
    # The device's own power and reciprocal add 2^-22 and 2^-23 of the largest value that they have here, which is 2.
    assert np.abs(found - REAL[name](x.astype(np.float64))).max() < 1e-6 - 2**-21


@pytest.mark.parametrize("name", REAL)
def test_infinities_saturate_and_nan_stays(name):
    x = np.array([np.inf, -np.inf, np.nan, 0.0], FLOAT)
    with np.errstate(all="ignore"):
        found = function(name)(x)
    least = 0.0 if name == "sigmoid_fast" else -1.0
    assert found[0] == 1.0 and found[1] == least and np.isnan(found[2])
    assert found[3] == (0.5 if name == "sigmoid_fast" else 0.0)


def test_gelu_is_as_exact_as_its_formula():
    x = np.concatenate([np.linspace(-9, 9, 60_001), np.geomspace(1e-38, 1e38, 400), -np.geomspace(1e-38, 1e38, 400)])
    x = x.astype(FLOAT)
    wide = x.astype(np.float64)
    real = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    with np.errstate(all="ignore"):
        found = function("gelu_fast")(x)
        ends = function("gelu_fast")(np.array([np.inf, np.nan], FLOAT))
    assert (np.abs(found - real) <= 5e-7 * np.abs(wide)).all()
    assert ends[0] == np.inf and np.isnan(ends[1])


_QUANTIZED = """
#include <math.h>
#include <string.h>
#define DEV static inline
static int __float_as_int(float x) { int bits; memcpy(&bits, &x, 4); return bits; }
static float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
static float __frcp_rn(float x) { return 1.f / x; }
%s
extern "C" void run(
    const float* x, const float* scale, long count, int zero, int low, int high, int* out, float* steps) {
  for (long i = 0; i < count; i++) out[i] = quantized(x[i], scale[i], zero, low, high);
  for (long i = 0; i < count; i++) steps[i] = quantized_steps(x[i], scale[i], zero, low, high);
}
extern "C" void whole(const float* x, long count, int zero, int low, int high, int* out, float* steps) {
  for (long i = 0; i < count; i++) out[i] = quantized(x[i], zero, low, high);
  for (long i = 0; i < count; i++) steps[i] = quantized_steps(x[i], zero, low, high);
}
extern "C" void less(const void* q, bool is_signed, int zero, float* out) {
  for (int i = 0; i < 256; i++)
    out[i] = is_signed ? byte_less(((const signed char*)q)[i], zero) : byte_less(((const unsigned char*)q)[i], zero);
}
"""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """The function of `hopper.cuh`, on the CPU."""
    text = text_of("relaxc.schedules.cuda.common", "hopper.cuh")
    body = re.search(r"DEV float rounded_within\(.*?\n(?=// Division)", text, re.S)[0]
    library = tmp_path_factory.mktemp("quantized") / "quantized.so"
    command = ["g++", "-x", "c++", "-std=c++17", "-O2", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", library, "-"], input=_QUANTIZED % body, text=True, check=True)
    return ctypes.CDLL(str(library))


def quantize(quantized, x, scale, zero, low, high):
    """What `quantized` and `quantized_steps` give."""
    quantized.run.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_long, *[ctypes.c_int] * 3, *[ctypes.c_void_p] * 2]
    x, scale = (np.ascontiguousarray(each, FLOAT) for each in (x, scale))
    out, steps = np.zeros(x.shape, np.int32), np.zeros(x.shape, FLOAT)
    quantized.run(x.ctypes.data, scale.ctypes.data, x.size, zero, low, high, out.ctypes.data, steps.ctypes.data)
    return out, steps


def numbers_and_scales(kind):
    draw, count = np.random.default_rng(0), 300_000
    any_bits = [draw.integers(0, 1 << 32, count, dtype=np.uint32).view(FLOAT) for _ in range(2)]
    scale = (draw.random(count) * 0.2 + 1e-3).astype(FLOAT)
    halves = draw.integers(-300, 300, count) + 0.5
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, 1e-30, 1e30, 1e-38, 0.5, 1, -1, 0.1], FLOAT)
    return {
        "boundaries": ((halves * scale.astype(np.float64)).astype(FLOAT), scale),
        "any numbers": (any_bits[0], scale),
        "any scales": tuple(any_bits),
        "special": tuple(each.ravel() for each in np.meshgrid(special, special)),
    }[kind]


@pytest.mark.parametrize("kind", ["boundaries", "any numbers", "any scales", "special"])
@pytest.mark.parametrize(("zero", "low", "high"), [(3, 0, 255), (0, -128, 127), (255, 0, 255)])
def test_a_quotient_is_quantized_as_a_division_would_have_it(quantized, kind, zero, low, high):
    """To the bit, for every float: without a division, it is several times as quick."""
    x, scale = numbers_and_scales(kind)
    with np.errstate(all="ignore"):
        steps = np.rint(x / scale).astype(FLOAT) + FLOAT(zero)
    wanted = np.where(np.isnan(steps), low, np.clip(steps, low, high)).astype(np.int32)
    found, steps_less_zero = quantize(quantized, x, scale, zero, low, high)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(steps_less_zero, (wanted - zero).astype(FLOAT))


@pytest.mark.parametrize(("zero", "low", "high"), [(3, 0, 255), (0, -128, 127), (255, 0, 255)])
def test_a_scale_of_one_needs_no_quotient(quantized, zero, low, high):
    quantized.whole.argtypes = [ctypes.c_void_p, ctypes.c_long, *[ctypes.c_int] * 3, *[ctypes.c_void_p] * 2]
    drawn = [numbers_and_scales(kind)[0] for kind in ("any numbers", "special")]
    x = np.concatenate([*drawn, np.arange(-600, 600, dtype=FLOAT) * FLOAT(0.5)])
    with np.errstate(all="ignore"):
        x = x * FLOAT(1)  # quiet NaNs, as arithmetic gives them
    out, steps = np.zeros(x.shape, np.int32), np.zeros(x.shape, FLOAT)
    quantized.whole(x.ctypes.data, x.size, zero, low, high, out.ctypes.data, steps.ctypes.data)
    with np.errstate(all="ignore"):
        moved = np.rint(x) + FLOAT(zero)
    wanted = np.clip(np.where(np.isnan(moved), low, moved), low, high).astype(np.int32)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(steps, (wanted - zero).astype(FLOAT))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero", [0, 100, 127])
def test_a_byte_less_a_zero_point_is_exact(quantized, dtype, zero):
    bytes_of = np.arange(256).astype(np.uint8).view(dtype)
    out = np.zeros(256, FLOAT)
    quantized.less.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_int, ctypes.c_void_p]
    quantized.less(bytes_of.ctypes.data, dtype == "int8", zero, out.ctypes.data)
    np.testing.assert_array_equal(out, bytes_of.astype(FLOAT) - zero)
