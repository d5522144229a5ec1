"""Weights rounded in blocks: how far, in which layout, and which of a file's tensors."""

from __future__ import annotations

import numpy as np
import pytest

from relaxc.service.rounding import (
    LEAST_ELEMENTS,
    RoundedWeight,
    Rounding,
    block_of,
    digest,
    digests,
    quantized,
    rounded,
)

WEIGHTS = np.random.default_rng(0).standard_normal((160, 192)).astype("float32")


@pytest.mark.parametrize(("depth", "block"), [(768, 64), (96, 32), (48, 16), (100, None), (64, 64)])
def test_blocks_divide_the_depth(depth: int, block: int | None) -> None:
    assert block_of(depth) == block


@pytest.mark.parametrize(("bits", "least", "most"), [(4, 0.05, 0.12), (8, 0.003, 0.008)])
def test_the_error_is_that_of_the_bits(bits: int, least: float, most: float) -> None:
    apart = rounded(WEIGHTS, bits, 1) - WEIGHTS
    assert least < np.sqrt(np.mean(apart**2)) < most


@pytest.mark.parametrize("bits", [4, 8])
def test_each_step_is_less_than_half_of_one_off(bits: int) -> None:
    """Of 4 bits the other end of a block may be clipped, by at most one step."""
    codes, scales = quantized(WEIGHTS.reshape(-1, 64), bits)
    apart = np.abs(codes * scales[:, None] - WEIGHTS.reshape(-1, 64)) / np.abs(scales)[:, None]
    assert apart.max() <= (1.0001 if bits == 4 else 0.5001)
    assert codes.min() >= -(1 << bits - 1) and codes.max() < 1 << bits - 1


def test_axes_are_those_of_the_sum() -> None:
    np.testing.assert_array_equal(rounded(np.ascontiguousarray(WEIGHTS.T), 4, 0), rounded(WEIGHTS, 4, 1).T)


def test_zeros_stay_and_what_is_not_finite_is_no_error() -> None:
    assert not rounded(np.zeros((4, 64), np.float32), 4, 1).any()
    with np.errstate(all="ignore"):
        codes, _ = quantized(np.array([[np.inf, 1.0], [np.nan, 1.0]], np.float32), 4)
    assert codes.dtype == np.int8


def test_only_what_was_rounded_is() -> None:
    row = RoundedWeight(digest(WEIGHTS), WEIGHTS.shape, 1, 64, 0.1)
    rounding = Rounding(4, (row,), 2)
    assert Rounding.from_dict(rounding.to_dict()) == rounding
    found = rounding.apply(WEIGHTS)
    assert found is not None and (found == rounded(WEIGHTS, 4, 1)).all()
    assert rounding.apply(WEIGHTS + 1) is None and rounding.apply(WEIGHTS.reshape(192, 160)) is None


def test_small_tensors_have_no_digest() -> None:
    others = [np.zeros((2, 2), np.float32), np.zeros(LEAST_ELEMENTS, np.float32), WEIGHTS.astype("float64")]
    assert list(digests([*others, WEIGHTS])) == [digest(WEIGHTS)]
