"""Positions whose sizes are symbols: what is divided by one, and what is left as it is."""

from __future__ import annotations

import pytest
from tvm import tirx

from relaxc.schedules.ir import positions, tir
from relaxc.schedules.ir.types import Expr

B, T, P = (tirx.Var(name, "int64") for name in "BTP")
b, t, h, d = (tirx.Var(name, "int64") for name in "bthd")
BOUNDS = {b: B, t: T, h: 12, d: 64}


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        (tirx.floormod(b * T + t, T), t),
        (tirx.floordiv(b * T * 768 + t * 768 + h * 64 + d, T * 768), b),
        (tirx.floormod(tirx.floordiv(b * T * 768 + t * 768 + h * 64 + d, 768), T), t),
        (tirx.floordiv((b * 12 + h) * T * 64 + t * 64 + d, T * 64), b * 12 + h),
        (tirx.floormod(b * T + t, B * T), b * T + t),
    ],
)
def test_numbers_of_whole_ones_are_divided(expr: Expr, wanted: Expr) -> None:
    found = positions.simplify(expr, BOUNDS)
    assert tir.as_int(tir.simplify(found - wanted, BOUNDS)) == 0


@pytest.mark.parametrize(
    "expr",
    [
        tirx.floormod(b * T + t + 1, T),  # the last is one of the next
        tirx.floordiv(b * P + t, P),  # t may be P or more
        tirx.floordiv(b * T - t, T),
        tirx.floormod(b * T + h, T),
    ],
)
def test_what_may_not_stay_below_is_left(expr: Expr) -> None:
    found = positions.simplify(expr, BOUNDS)
    assert tir.collect(found, (tirx.FloorDiv, tirx.FloorMod))


def test_steps_may_be_of_sizes() -> None:
    step = positions.step(((b * 12 + h) * T + t) * 64 + d, b, BOUNDS)
    assert step is not None and tir.as_int(tir.simplify(step - T * 768)) == 0
    assert positions.step(tirx.floordiv(t, T) * 2, t, BOUNDS) is None
