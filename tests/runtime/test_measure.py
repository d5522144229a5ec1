"""Errors of an output: what the formulas say, and nothing of the outputs is written over on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from relaxc.service.runtime.measure import FLOOR, OUTLIER, measure, ordinary


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (40, 50)])
@pytest.mark.parametrize("odd", [False, True])
def test_errors_are_what_the_formulas_say(dtype: str, shape: tuple[int, ...], odd: bool) -> None:
    rng = np.random.default_rng(len(shape))
    want = np.asarray(rng.standard_normal(shape)).astype(dtype)
    got = (want * (1 + 1e-3 * rng.standard_normal(shape))).astype(dtype)
    if odd and want.size > 6:
        want.flat[:4], got.flat[:4] = (np.nan, np.inf, 0, 6e4), (np.nan, np.inf, 0.5, 5.9e4)
    kept = got.copy(), want.copy()
    found = measure(got, want)
    np.testing.assert_array_equal(got, kept[0])
    np.testing.assert_array_equal(want, kept[1])
    finite = np.isfinite(want) & np.isfinite(got)
    a, b = got[finite].astype("float64"), want[finite].astype("float64")
    usual = np.abs(b) <= OUTLIER * np.median(np.abs(b)[b != 0])
    rms = math.sqrt(np.mean(b[usual] ** 2))
    assert found.finite == len(b)
    assert found.max_abs == np.abs(a - b).max()
    assert found.max_rel == pytest.approx((np.abs(a - b)[b != 0] / np.abs(b[b != 0])).max(), rel=1e-12)
    assert found.max_scaled == pytest.approx((np.abs(a - b) / (np.abs(b) + max(rms, FLOOR))).max(), rel=1e-12)
    assert found.rms == pytest.approx(math.sqrt(np.mean((a - b)[usual] ** 2)) / rms, rel=1e-12)
    cosine = (a[usual] @ b[usual]) / (np.linalg.norm(a[usual]) * np.linalg.norm(b[usual]))
    assert found.cosine == pytest.approx(min(1.0, cosine), rel=1e-12)


def test_doubles_are_not_written_over_and_views_are_read() -> None:
    want = np.random.default_rng(0).standard_normal((30, 40))
    kept = want.copy()
    assert measure(want, want).max_abs == 0
    assert measure(want.T, want.T).cosine == pytest.approx(1)
    assert ordinary(want).all()
    np.testing.assert_array_equal(want, kept)
