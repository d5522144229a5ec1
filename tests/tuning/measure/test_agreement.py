"""The quick look at two outputs: it never passes what the comparison of a verification would not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relaxc.service.runtime.compare import compare
from relaxc.service.tuning.measure.agreement import agree

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def values(seed: int, size: int = 300_000) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32) * 30


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relative", [0.0, 1e-3, 1e-2, 3e-2, 0.2])
def test_what_it_passes_the_comparison_passes_too(dtype: str, relative: float) -> None:
    want = values(0)
    got = (want * (1 + relative * np.sign(values(1)))).astype(DTYPES[dtype])
    want = want.astype(DTYPES[dtype])
    passed = compare({"y": got}, {"y": want}, {"y": dtype}).passed
    assert agree(got, want, dtype) <= passed
    if relative <= 1e-3:
        assert agree(got, want, dtype)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, 500.0])
def test_one_element_is_enough(spoilt: float) -> None:
    want = values(2).astype(np.float16)
    got = want.copy()
    got[-1] = spoilt
    assert agree(want, want, "float16")
    assert not agree(got, want, "float16")
    assert not agree(got, got, "float16") or np.isfinite(spoilt)


def test_a_shift_of_everything_turns_the_direction() -> None:
    want = values(3).astype(np.float16)
    assert not agree((want.astype(np.float32) + 0.45).astype(np.float16), want, "float16")


@pytest.mark.parametrize(
    ("got", "judge"),
    [(np.zeros(8, np.float16), "float16"), (np.ones(8, np.float64), "float64"), (np.ones(0, np.float16), "float16")],
)
def test_there_is_no_verdict_on_what_it_does_not_know(got: np.ndarray, judge: str) -> None:
    assert not agree(got, got, judge)


def test_fillers_are_left_to_the_comparison() -> None:
    want = values(4).astype(np.float16)
    want[7] = -65504.0
    assert not agree(want, want, "float16")
