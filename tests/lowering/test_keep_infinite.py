"""Products with zero, quotients of it, and differences of sums are what IEEE 754 says."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.sym import Analyzer

from relaxc.service.lowering.fold_bits import FoldBits
from relaxc.service.lowering.keep_infinite import KeepInfinite

X, Y = (tirx.Var(name, "float32") for name in "xy")
I = tirx.Var("i", "int32")  # noqa: E741


def number(value: float) -> Any:
    return tirx.FloatImm("float32", value)


def kept(value: Any) -> Any:
    """What TVM's arithmetic leaves of an expression behind the pass, with no bits of literals."""
    module = KeepInfinite()(tvm.IRModule({"main": tirx.PrimFunc([X, Y, I], tirx.Evaluate(value))}))
    func = module["main"]
    simplified = func.with_body(tirx.Evaluate(Analyzer().simplify(func.body.value)))
    return FoldBits()(tvm.IRModule({"main": simplified}))["main"].body.value


@pytest.mark.parametrize(
    "value",
    [
        tirx.Mul(X, number(0.0)),
        tirx.Mul(number(-0.0), X),
        tirx.Div(number(0.0), X),
        tirx.Div(X, number(0.0)),
        tirx.Div(number(1.0), tirx.Mul(X, number(0.0))),
        tirx.Mul(X, tirx.Max(number(0.0), number(-1.0))),
    ],
)
def test_zeros_stay(value: Any) -> None:
    assert type(kept(value)) is type(value) and tirx.analysis.undefined_vars(kept(value)) == [X]


@pytest.mark.parametrize("value", [(X + Y) - Y, (X + number(1)) - X, (X + number(8.0)) - number(8.0), X - X], ids=str)
def test_differences_are_not_resolved(value: Any) -> None:
    assert isinstance(kept(value), tirx.Sub)


@pytest.mark.parametrize(
    "value",
    [X * number(1), X - Y, (X + Y) - number(1), X * Y, (X * Y) - Y, X / Y, (I + tirx.IntImm("int32", 1)) - I],
)
def test_all_else_stays_as_it_is(value: Any) -> None:
    func = tirx.PrimFunc([X, Y, I], tirx.Evaluate(value))
    tvm.ir.assert_structural_equal(KeepInfinite()(tvm.IRModule({"main": func}))["main"].body.value, value)
