"""The comparison: what passes, what does not, and that a report never flatters."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaxc.service.request import Precision
from relaxc.service.runtime.compare import EMPTY, compare, judging_dtypes
from relaxc.service.runtime.tolerances import TOLERANCES
from relaxc.service.runtime.verification import Verification
from relaxc.service.signature import Signature, TensorSpec

Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 0) -> Array:
    """Normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(got: Array, want: Array, judge: str | None = None) -> Any:
    """The report of a single output, which survives JSON."""
    found = compare({"y": got}, {"y": want}, {"y": judge} if judge else None)
    assert Verification.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
    assert found.passed == (found.reason == "")
    return found.outputs[0] if found.passed or not found.outputs[0].passed else found


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_an_equal_output_passes_and_so_does_rounding(dtype: str) -> None:
    want = normal(50, 40).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert check(want.copy(), want).max_abs_error == 0
    eps = TOLERANCES[dtype].error / 10
    got = (want.astype(np.float64) * (1 + eps)).astype(want.dtype)
    assert check(got, want).passed


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_an_error_over_the_tolerance_fails_and_is_found(dtype: str) -> None:
    want = normal(50, 40).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    got = want.copy()
    got[3, 7] += np.asarray(5 * TOLERANCES[dtype].error).astype(want.dtype)
    row = check(got, want)
    assert not row.passed
    assert row.first_mismatch == [3, 7]
    assert row.passing_tolerance >= row.scaled_error > row.tolerance


def test_a_tanh_gelu_in_place_of_an_erf_one_is_found() -> None:
    x = normal(64, 256).astype(np.float64)
    erf = np.vectorize(math.erf)(x / math.sqrt(2))
    exact = (x * 0.5 * (1 + erf)).astype(np.float32)
    rough = (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))).astype(np.float32)
    assert not check(rough, exact).passed


def test_small_tensors_are_judged_as_strictly_as_large_ones() -> None:
    want = normal(100)
    for scale in (1e-5, 1.0, 1e20):
        scaled = (want * np.float32(scale)).astype(np.float32)
        assert check((scaled * np.float32(1 + 1e-5)).astype(np.float32), scaled).passed
        assert not check((scaled * np.float32(1.001)).astype(np.float32), scaled).passed


def test_a_value_near_zero_among_ordinary_ones_may_be_off_by_their_rounding() -> None:
    want = normal(100)
    want[5] = 1e-9
    got = want.copy()
    got[5] = -2e-6
    assert check(got, want).passed
    assert check(got, want).max_rel_error > 1000


def test_one_huge_value_does_not_hide_the_others() -> None:
    for filler in (np.finfo(np.float32).min, np.float32(-1e9)):
        want = normal(100)
        want[::4] = filler
        wrong = want.copy()
        wrong[1] += 0.01
        assert not check(wrong, want).passed
        turned = want.copy()
        turned[want != filler] = normal(75, seed=1)
        assert not check(turned, want).passed
        assert check(want.copy(), want).passed


def test_huge_doubles_do_not_overflow_into_a_pass() -> None:
    want = normal(100).astype(np.float64) * 1e300
    assert check(want * (1 + 1e-12), want).passed
    assert not check(want * 1.01, want).passed


def test_an_error_that_is_small_everywhere_and_systematic_is_found_by_the_cosine() -> None:
    want = normal(1000).astype(ml_dtypes.bfloat16)
    noise = normal(1000, seed=1)
    got = (want.astype(np.float32) + 0.08 * np.sign(noise)).astype(ml_dtypes.bfloat16)
    row = check(got, want)
    assert not row.passed
    assert "cosine" in row.reason
    assert row.passing_tolerance is None


def test_nan_and_infinities_must_be_where_the_reference_has_them() -> None:
    want = normal(6)
    want[1], want[2], want[3] = np.nan, np.inf, -np.inf
    assert check(want.copy(), want).passed
    assert check(want.copy(), want).nonfinite == 3
    for place, value in ((0, np.nan), (0, np.inf), (1, 0.0), (2, -np.inf), (3, np.nan), (2, 1e38)):
        got = want.copy()
        got[place] = value
        row = check(got, want)
        assert not row.passed
        assert row.nonfinite_mismatches == 1
        assert row.first_mismatch == [place]
        assert row.passing_tolerance is None


def test_nothing_to_compare_is_never_a_pass() -> None:
    nan = np.full(4, np.nan, np.float32)
    assert not check(nan.copy(), nan).passed
    assert not compare({}, {}).passed
    empty = np.zeros((0, 3), np.float32)
    assert not compare({"y": empty}, {"y": empty}).passed
    assert compare({"y": empty, "z": np.ones(1)}, {"y": empty, "z": np.ones(1)}).passed
    assert compare({"y": empty}, {"y": empty}, {"y": EMPTY}).passed
    assert not Verification.worst([]).passed


def test_names_dtypes_and_shapes_must_be_equal() -> None:
    y = normal(4)
    assert not compare({"a": y}, {"b": y}).passed
    assert not compare({"a": y, "b": y}, {"b": y}).passed
    assert not check(y.astype(np.float64), y).passed
    assert not check(y.reshape(2, 2), y).passed
    assert not check(y.reshape(4, 1), y).passed


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64"])
def test_integers_and_bools_must_be_equal(dtype: str) -> None:
    want = np.array([[0, 1], [1, 0]]).astype(dtype)
    assert check(want.copy(), want).passed
    got = want.copy()
    got[1, 1] = 1
    row = check(got, want, "bfloat16")
    assert not row.passed
    assert row.first_mismatch == [1, 1]
    assert row.max_abs_error == 1


def test_zeros_pass_with_noise_below_the_floor_and_fail_above_it() -> None:
    zeros = np.zeros(10, np.float32)
    assert check(zeros + np.float32(1e-12), zeros).passed
    assert not check(zeros + np.float32(1e-6), zeros).passed
    assert not check(zeros, zeros + np.float32(1e-3)).passed


def test_the_judging_dtype_is_the_coarsest_on_the_way() -> None:
    signature = Signature(
        (TensorSpec("x", "float32", (1,)),),
        (TensorSpec("y", "float32", (1,)), TensorSpec("z", "int64", (1,)), TensorSpec("h", "float16", (1,))),
    )
    assert judging_dtypes(signature) == {"y": "float32", "z": "int64", "h": "float16"}
    assert judging_dtypes(signature, precision=Precision.BF16) == {"y": "bfloat16", "z": "int64", "h": "bfloat16"}
    weights = [TensorSpec("w", "float16", (1,)), TensorSpec("i", "int8", (1,))]
    assert judging_dtypes(signature, weights=weights)["y"] == "float16"
    assert judging_dtypes(replace(signature, state=(TensorSpec("s", "bfloat16", (1,)),)))["y"] == "bfloat16"
    want = normal(1000)
    got = want + 0.01 * normal(1000, seed=1)
    assert not check(got, want).passed
    assert check(got, want, "float16").tolerance == TOLERANCES["float16"].error


def test_the_worst_of_several_runs_is_reported() -> None:
    want = normal(10)
    good, bad = compare({"y": want}, {"y": want}), compare({"y": want * 2}, {"y": want})
    slightly = compare({"y": want * np.float32(1 + 1e-6)}, {"y": want})
    assert Verification.worst([good, slightly]).outputs == slightly.outputs
    found = Verification.worst([good, bad, slightly])
    assert not found.passed
    assert found.outputs == bad.outputs
    assert found.reason == bad.reason


@given(st.floats(1e-12, 1e12))
def test_the_tolerance_that_would_pass_is_no_smaller_than_the_error(value: float) -> None:
    from relaxc.service.runtime.compare import _rounded

    up = _rounded(value, up=True)
    assert up is not None
    assert value <= up <= value * 1.011


def test_eight_bit_floats_are_equal_and_nan_where_the_reference_is() -> None:
    want = np.array([1, np.nan, 448, -2], ml_dtypes.float8_e4m3fn)
    assert compare({"y": want.copy()}, {"y": want}).passed
    for place, other in ((0, np.nan), (1, 1), (2, 416)):
        got = want.copy()
        got[place] = other
        assert not compare({"y": got}, {"y": want}).passed
