"""Comparisons of floats, so that TVM's arithmetic draws no conclusions from them: they would not hold for NaN.

x == x, x <= x, x >= x   →  not isnan(x)     taken for true; an old test for NaN
x != x                   →  isnan(x)
not a, a and b, a or b   →  a ^ 1, a & b, a | b     `not x < y` was taken for `y <= x`, `x < y or y <= x` for true
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from schedules.ir.dtypes import is_float

__all__ = ["COMPARISONS"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _compare(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    left, right = call.args
    if not (left.same_as(right) and is_float(str(left.ty.dtype))):
        return call.op.get_attr("FLegalize")(builder, call)
    if_nan = call.op.name == "relax.not_equal"

    def compute(data: te.Tensor) -> te.Tensor:
        wide = "float64" if str(data.dtype) == "float64" else "float32"

        def element(*at: Any) -> Any:
            is_nan = tirx.isnan(data(*at).astype(wide))
            return is_nan if if_nan else tirx.Not(is_nan)

        return te.compute(data.shape, element, name="compare")

    return builder.call_te(compute, left, primfunc_name_hint=call.op.name.removeprefix("relax."))


def _subtract(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    left, right = call.args
    dtype = str(left.ty.dtype)
    if not (left.same_as(right) and is_float(dtype)):
        return call.op.get_attr("FLegalize")(builder, call)
    zero, nan = (tirx.const(number, dtype) for number in (0.0, float("nan")))

    def compute(data: te.Tensor) -> te.Tensor:
        wide = "float64" if dtype == "float64" else "float32"

        def element(*at: Any) -> Any:
            is_finite = tirx.abs(data(*at).astype(wide)) < tirx.const(float("inf"), wide)
            return tirx.Select(is_finite, zero, nan)

        return te.compute(data.shape, element, name="subtract")

    return builder.call_te(compute, left, primfunc_name_hint="subtract")


def _by_bits(compute: Callable[..., Any]) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if any(str(operand.ty.dtype) != "bool" for operand in call.args):
            return call.op.get_attr("FLegalize")(builder, call)
        return builder.call_te(compute, *call.args, primfunc_name_hint=call.op.name.removeprefix("relax."))

    return legalize


def _not(data: te.Tensor) -> te.Tensor:
    return te.compute(data.shape, lambda *at: tirx.bitwise_xor(data(*at), tirx.const(True, "bool")), name="logical_not")


COMPARISONS: dict[str, Legalization] = {
    **{f"relax.{name}": _compare for name in ("equal", "not_equal", "greater_equal", "less_equal")},
    "relax.subtract": _subtract,
    "relax.logical_not": _by_bits(_not),
    "relax.logical_and": _by_bits(topi.bitwise_and),
    "relax.logical_or": _by_bits(topi.bitwise_or),
}
