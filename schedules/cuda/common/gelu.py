"""GELU by tanh in an expression, which has a shorter form where its result has 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose, pi, sqrt

from tvm import tirx
from tvm.ir import Call, TensorLoad

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Expr

__all__ = ["tanh_gelu"]

Inner = Callable[[TensorLoad], Expr | None]


def tanh_gelu(expr: Expr, inner: Inner) -> Expr | None:
    """Return x where `expr` is `½ x (1 + tanh(√(2/π) x (1 + 0.044715 x²)))`; `inner` is what is behind a load."""
    if (found := _times_one_plus(expr, 0.5, inner)) is None:
        return None
    x, tanh = found
    if not isinstance(tanh, Call) or str(getattr(tanh.op, "name", "")) != "tirx.tanh":
        return None
    if (argument := _times_one_plus(tanh.args[0], sqrt(2 / pi), inner)) is None or not tir.same(argument[0], x):
        return None
    constant, factors = _product(argument[1], inner)
    is_cubic = isclose(constant, 0.044715, rel_tol=1e-6) and len(factors) == 2
    return x if is_cubic and all(tir.same(factor, x) for factor in factors) else None


def _times_one_plus(expr: Expr, by: float, inner: Inner) -> tuple[Expr, Expr] | None:
    """(x, y) where `expr` is `by * x * (1 + y)`."""
    constant, factors = _product(expr, inner)
    if len(factors) != 2 or not isclose(constant, by, rel_tol=1e-6):
        return None
    for x, other in (factors, factors[::-1]):
        plus = _behind(other, inner)
        if isinstance(plus, tirx.Add):
            for one, y in ((plus.a, plus.b), (plus.b, plus.a)):
                if isinstance(one, tirx.FloatImm) and float(one.value) == 1.0:
                    return x, _behind(y, inner)
    return None


def _product(expr: Expr, inner: Inner) -> tuple[float, list[Expr]]:
    """The constant factor of a product, and its other factors."""
    value = _behind(expr, inner)
    if isinstance(value, tirx.FloatImm):
        return float(value.value), []
    if not isinstance(value, tirx.Mul):
        return 1.0, [expr]
    (a, left), (b, right) = _product(value.a, inner), _product(value.b, inner)
    return a * b, [*left, *right]


def _behind(expr: Expr, inner: Inner) -> Expr:
    found = inner(expr) if isinstance(expr, TensorLoad) else None
    return expr if found is None else _behind(found, inner)
