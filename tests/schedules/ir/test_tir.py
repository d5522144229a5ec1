"""How far a position goes with each step of a variable, and what is known of it within bounds only."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from relaxc.schedules.ir import tir

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


@pytest.mark.parametrize("kinds", [tirx.Var, (tirx.Add, tirx.Mul), (Call, tirx.IntImm, tirx.Var)])
def test_what_is_collected_is_what_tvm_walks_through(kinds) -> None:
    x, y = (tirx.Var(name, "int64") for name in "xy")
    expr = tirx.Select(x < 3, x * (y + 1), tirx.floormod(tirx.abs(y) + x, 7))
    found: list = []
    tvm_ffi.structural_walk(expr, (kinds, lambda node: found.append(node) or tvm_ffi.structural.WalkResult.ADVANCE))
    assert found
    assert all(one.same_as(other) for one, other in zip(tir.collect(expr, kinds), found, strict=True))


def test_a_variable_of_one_value_keeps_its_type() -> None:
    """TVM puts the start of its range in its place, and compares it with what the type of the variable has."""
    i, n = tirx.Var("i", "int64"), tirx.Var("n", "int64")
    chosen = tirx.if_then_else(n <= i, i, n - i)
    assert str(tir.simplify(chosen - i, {i: tir.index_const(1), n: 5}).ty.dtype) == "int64"
