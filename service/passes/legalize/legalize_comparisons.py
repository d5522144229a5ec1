"""Comparisons, so that TVM's arithmetic draws no conclusions from them: they would not hold for NaN, nor where integers
wrap.

x == x, x <= x, x >= x   →  not isnan(x)     taken for true; an old test for NaN
x != x                   →  isnan(x)
not a, a and b, a or b   →  a ^ 1, a & b, a | b     `not x < y` was taken for `y <= x`, `x < y or y <= x` for true
i + 1 > i                →  bits(i + 1) > bits(i)   taken for true: integers of 32 and 64 bits are indices to TVM
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from schedules.ir.dtypes import is_float
from service.passes.legalize.legalize_norms import accumulator

__all__ = ["COMPARISONS", "opaque"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_INDICES = ("int32", "int64")
"""Dtypes in which nothing overflows, as TVM's arithmetic has it."""


def _of_one_value(legalize: Legalization, otherwise: Legalization) -> Legalization:
    """What `legalize` gives of a float and itself, and `otherwise` of other operands."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        left, right = call.args
        return (legalize if left.same_as(right) and is_float(str(left.ty.dtype)) else otherwise)(builder, call)

    return legalized


def _plain(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _of_bits(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's comparison, where integers could wrap one of values that it knows nothing of."""
    name = call.op.name.removeprefix("relax.")
    types = [operand.ty for operand in call.args]
    if not all(isinstance(each, relax.TensorType) and str(each.dtype) in _INDICES for each in types):
        return _plain(builder, call)

    def compute(left: te.Tensor, right: te.Tensor) -> te.Tensor:
        return getattr(topi, name)(opaque(left), opaque(right))

    return builder.call_te(compute, *call.args, primfunc_name_hint=name)


def opaque(data: te.Tensor) -> te.Tensor:
    """Return the same integers, as ones that TVM's arithmetic knows nothing of."""
    dtype = str(data.dtype)

    def element(*at: Any) -> Any:
        return tirx.reinterpret(dtype, tirx.reinterpret(f"u{dtype}", data(*at)))

    return te.compute(data.shape, element, name="bits")


def _compare(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if_nan = call.op.name == "relax.not_equal"

    def compute(data: te.Tensor) -> te.Tensor:
        wide = accumulator(str(data.dtype))

        def element(*at: Any) -> Any:
            is_nan = tirx.isnan(data(*at).astype(wide))
            return is_nan if if_nan else tirx.Not(is_nan)

        return te.compute(data.shape, element, name="compare")

    return builder.call_te(compute, call.args[0], primfunc_name_hint=call.op.name.removeprefix("relax."))


def _subtract(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.args[0].ty.dtype)
    zero, nan = (tirx.const(number, dtype) for number in (0.0, float("nan")))

    def compute(data: te.Tensor) -> te.Tensor:
        wide = accumulator(dtype)

        def element(*at: Any) -> Any:
            is_finite = tirx.abs(data(*at).astype(wide)) < tirx.const(float("inf"), wide)
            return tirx.Select(is_finite, zero, nan)

        return te.compute(data.shape, element, name="subtract")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="subtract")


def _by_bits(compute: Callable[..., Any]) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if any(str(operand.ty.dtype) != "bool" for operand in call.args):
            return _plain(builder, call)
        return builder.call_te(compute, *call.args, primfunc_name_hint=call.op.name.removeprefix("relax."))

    return legalize


def _not(data: te.Tensor) -> te.Tensor:
    return te.compute(data.shape, lambda *at: tirx.bitwise_xor(data(*at), tirx.const(True, "bool")), name="logical_not")


COMPARISONS: dict[str, Legalization] = {
    **{f"relax.{name}": _of_one_value(_compare, _of_bits) for name in ("equal", "not_equal")},
    **{f"relax.{name}": _of_one_value(_compare, _of_bits) for name in ("greater_equal", "less_equal")},
    **{f"relax.{name}": _of_bits for name in ("greater", "less")},
    "relax.subtract": _of_one_value(_subtract, _plain),
    "relax.logical_not": _by_bits(_not),
    "relax.logical_and": _by_bits(topi.bitwise_and),
    "relax.logical_or": _by_bits(topi.bitwise_or),
}
