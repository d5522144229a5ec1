"""WeightCopies: many lists of arguments that differ in the place of their weights alone."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxc.service.runtime.tensors import ALIGN, numpy_view
from relaxc.service.tuning.measure.weight_copies import WeightCopies

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 5), dtype=np.float32)
W = RNG.standard_normal((16, 16), dtype=np.float32)
B = RNG.standard_normal(5).astype(ml_dtypes.bfloat16)


def addresses(lists: list[list[Any]], position: int) -> list[int]:
    return [arguments[position].data_ptr() for arguments in lists]


def test_lists_share_all_but_their_weights() -> None:
    lists = WeightCopies().lists([X, W, 7, B], [1, 3], 10 * (W.nbytes + ALIGN))
    assert len(lists) == 10
    assert len(set(addresses(lists, 0))) == 1
    assert len(set(addresses(lists, 1))) == len(set(addresses(lists, 3))) == 10
    assert all(address % ALIGN == 0 for address in addresses(lists, 1) + addresses(lists, 3))
    for arguments in lists:
        for got, want in zip(arguments, (X, W, 7, B), strict=True):
            if isinstance(want, int):
                assert got == want
            else:
                assert str(got.dtype) == str(want.dtype)
                np.testing.assert_array_equal(numpy_view(got), want)


@pytest.mark.parametrize(
    ("weights", "total_bytes", "limit_bytes", "count"),
    [([], 1 << 20, 1 << 20, 1), ([1], 0, 1 << 20, 1), ([1], 10, 1 << 20, 1), ([1], 1 << 40, 4096, 4)],
)
def test_their_number(weights: list[int], total_bytes: int, limit_bytes: int, count: int) -> None:
    assert len(WeightCopies(limit_bytes).lists([X, W], weights, total_bytes)) == count


def test_the_pool_grows_and_is_used_again() -> None:
    copies = WeightCopies()
    small = copies.lists([W], [0], 4 * W.nbytes)
    large = copies.lists([W], [0], 64 * W.nbytes)
    again = copies.lists([W], [0], 4 * W.nbytes)
    assert addresses(large, 0)[:4] == addresses(again, 0)
    np.testing.assert_array_equal(small[3][0].numpy(), W)
