"""Powers of integers, which wrap: from the exponent's highest bit down, a square, and a product where the bit is set.

x ** n, n < 0    →  1 of 1, -1 or 1 of -1, else 0
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi

from relaxc.service.passes.common.constants import array_of, is_tensor_constant
from relaxc.service.passes.legalize.legalize_division import read

__all__ = ["POWERS"]


def _power(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    base, exponent = call.args
    dtype = str(call.ty.dtype)
    if not dtype.startswith(("int", "uint")):
        return call.op.get_attr("FLegalize")(builder, call)
    last = int(tirx.max_value(dtype).value)
    most = int(array_of(exponent).max(initial=1)) if is_tensor_constant(exponent) else last
    bits = max(most, 1).bit_length()
    return builder.call_te(lambda x, n: _powers(x, n, bits), base, exponent, primfunc_name_hint="power")


def _powers(base: te.Tensor, exponent: te.Tensor, bits: int) -> te.Tensor:
    """Powers by exponents that have no more than `bits`, where they are not negative."""
    dtype = str(base.dtype)
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
    reducer = te.comm_reducer(lambda r, factor: r * r * factor, lambda kind: tirx.const(1, kind), name="power")
    step = te.reduce_axis((0, bits), name="step")
    shape = topi.add(base, exponent).shape

    def is_odd(number: Any) -> Any:
        return tirx.EQ(number & one, one)

    def of_natural(*at: Any) -> Any:
        number = read(exponent, at) >> (tirx.const(bits - 1, dtype) - step.var.astype(dtype))
        return reducer(tirx.Select(is_odd(number), read(base, at), one), axis=step)

    powers = te.compute(shape, of_natural, name="power")
    if dtype.startswith("uint"):
        return powers
    minus = tirx.const(-1, dtype)

    def element(*at: Any) -> Any:
        x, n = read(base, at), read(exponent, at)
        of_minus = tirx.Select(is_odd(n), minus, one)
        unit = tirx.Select(tirx.EQ(x, one), one, tirx.Select(tirx.EQ(x, minus), of_minus, zero))
        return tirx.Select(n < zero, unit, powers(*at))

    return te.compute(shape, element, name="of_either_sign")


POWERS = {"relax.power": _power}
