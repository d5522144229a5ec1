"""How far a position goes with each step of a variable, and what is known of it within bounds only."""

from __future__ import annotations

from typing import Any

import pytest

from schedules.ir import tir

M, N = tir.fresh("m"), tir.fresh("n")
BOUNDS = {M: 6, N: 4}


@pytest.mark.parametrize(
    ("position", "step"),
    [
        (N, 0),
        (M * 12 + N, 12),
        (N - M, -1),
        ((M * 4 + N) // 4, 1),
        ((M * 4 + N) % 24, 4),
        ((M + N) // 16, 0),
        ((M * 4 + N) // 8, None),
        (M % 3, None),
        (M * N, None),
    ],
    ids=str,
)
def test_the_stride_is_known_where_it_is_always_as_far(position: Any, step: int | None) -> None:
    assert tir.stride(position, M, BOUNDS) == step
    assert not tir.steps_by_one(position, M, BOUNDS) or step == 1
