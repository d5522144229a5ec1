"""Comparisons, so that TVM's arithmetic draws no conclusions from them: they would not hold for NaN, nor where integers
wrap.

x == x, x <= x, x >= x   →  not isnan(x)     taken for true; an old test for NaN
x != x                   →  isnan(x)
not a, a and b, a or b   →  a ^ 1, a & b, a | b     `not x < y` was taken for `y <= x`, `x < y or y <= x` for true
a == b, a < b of bools   →  a ^ b ^ 1, ~a & b       compared as the bytes and as the bits that they are in LLVM
i + 1 > i                →  bits(i + 1) > bits(i)   taken for true: integers of 32 and 64 bits are indices to TVM
max(i + 1, i), |i - n|   →  the same of bits        for they are comparisons too, as are `min`, `sign`, ReLU and `clip`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.service.passes.legalize.legalize_norms import accumulator

__all__ = ["COMPARISONS", "is_computed", "opaque"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_CERTAIN = ("int32", "int64", "uint8", "uint16", "uint32", "uint64")
"""Dtypes in which nothing overflows, as TVM's arithmetic or LLVM has it."""


def _of_one_value(legalize: Legalization, otherwise: Legalization) -> Legalization:
    """What `legalize` gives of a float and itself, and `otherwise` of other operands."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        left, right = call.args
        return (legalize if left.same_as(right) and is_float(str(left.ty.dtype)) else otherwise)(builder, call)

    return legalized


def _plain(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _of_bits(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's operator, where integers could wrap one of values that it knows nothing of."""
    name = call.op.name.removeprefix("relax.")
    tensors = [operand for operand in call.args if isinstance(operand.ty, relax.TensorType)]
    others = call.args[len(tensors) :]
    if not all(str(operand.ty.dtype) in _CERTAIN for operand in tensors):
        return _plain(builder, call)

    def compute(*values: te.Tensor) -> te.Tensor:
        return _OPERATORS[name](*map(opaque, values), *others)

    return builder.call_te(compute, *tensors, primfunc_name_hint=name.rpartition(".")[2])


def opaque(data: te.Tensor) -> te.Tensor:
    """Return the same integers, as ones that TVM's arithmetic knows nothing of."""
    return te.compute(data.shape, lambda *at: tir.hidden(data(*at)), name="bits")


def is_computed(builder: relax.BlockBuilder, data: relax.Expr) -> bool:
    """Return whether it is a result, which may have wrapped, rather than an input of the function."""
    return isinstance(data, relax.Var) and builder.lookup_binding(data) is not None


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


def _by_bits(compute: Callable[..., Any], otherwise: Legalization) -> Legalization:
    """What `compute` makes of bools, and `otherwise` of operands of other dtypes."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if any(str(operand.ty.dtype) != "bool" for operand in call.args):
            return otherwise(builder, call)
        return builder.call_te(compute, *call.args, primfunc_name_hint=call.op.name.removeprefix("relax."))

    return legalize


def _not(data: te.Tensor) -> te.Tensor:
    return te.compute(data.shape, lambda *at: tirx.bitwise_xor(data(*at), tirx.const(True, "bool")), name="logical_not")


def _sign(data: te.Tensor) -> te.Tensor:
    """TVM's has a -1 in it, which no unsigned dtype has."""
    dtype = str(data.dtype)
    return topi.minimum(data, tirx.const(1, dtype)) if dtype.startswith("uint") else topi.sign(data)


def _negative(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's is a product with -1, too."""
    dtype = str(call.ty.dtype)
    if not dtype.startswith("uint"):
        return _plain(builder, call)
    zero = tirx.const(0, dtype)
    return builder.call_te(lambda data: topi.subtract(zero, data), call.args[0], primfunc_name_hint="negative")


_RELATIONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
_OPERATORS: dict[str, Callable[..., te.Tensor]] = {
    **{name: getattr(topi, name) for name in (*_RELATIONS, "maximum", "minimum", "abs", "clip")},
    "sign": _sign,
    "nn.relu": topi.nn.relu,
}
"""By whether one integer is less than another."""

_OF_BOOLS: dict[str, Callable[..., te.Tensor]] = {
    "logical_not": _not,
    "logical_and": topi.bitwise_and,
    "logical_or": topi.bitwise_or,
    "maximum": topi.bitwise_or,
    "minimum": topi.bitwise_and,
    "not_equal": topi.bitwise_xor,
    "equal": lambda x, y: _not(topi.bitwise_xor(x, y)),
    "greater": lambda x, y: topi.bitwise_and(x, _not(y)),
    "greater_equal": lambda x, y: topi.bitwise_or(x, _not(y)),
    "less": lambda x, y: topi.bitwise_and(_not(x), y),
    "less_equal": lambda x, y: topi.bitwise_or(_not(x), y),
}

_OTHERS: dict[str, Legalization] = {
    **dict.fromkeys(_OPERATORS, _of_bits),
    **dict.fromkeys(("equal", "not_equal", "greater_equal", "less_equal"), _of_one_value(_compare, _of_bits)),
    "subtract": _of_one_value(_subtract, _plain),
    "negative": _negative,
}

COMPARISONS: dict[str, Legalization] = {
    **{f"relax.{name}": legalize for name, legalize in _OTHERS.items()},
    **{f"relax.{name}": _by_bits(compute, _OTHERS.get(name, _plain)) for name, compute in _OF_BOOLS.items()},
}
