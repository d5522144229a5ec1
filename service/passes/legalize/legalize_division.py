"""Division by what a CPU or TVM's arithmetic cannot divide by, and products with zero.

x / 0.0              →  x * inf                   TVM refuses to write the division down
x * 0.0, 0.0 / x     →  x * 0.0, 0.0 / x          it writes down 0, though x be NaN or infinite
i // j, i % j        →  by 1 where j is 0         which stops the process; ONNX and C leave the result open
i // -1, i % -1      →  -i, 0                     the least integer by -1 stops it too; its negative wraps
(6 * i) // 3         →  bits(6 * i) // 3          TVM has 2 * i, and for `i // a // b` a * b, as though none wrapped
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx, topi

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.service.passes.common.constants import array_of, is_tensor_constant
from relaxc.service.passes.legalize.legalize_comparisons import is_computed, opaque

__all__ = ["DIVISION", "read"]


def _divide(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    left, right = call.args
    if not is_float(str(call.ty.dtype)):
        return _of_integers(builder, call)
    zero = _zero(right)
    if zero is None:
        return _with_zero(builder, call)
    infinity = tirx.const(math.copysign(math.inf, zero), str(right.ty.dtype))
    return builder.call_te(topi.multiply, left, infinity, primfunc_name_hint="divide")


def _with_zero(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A product with a constant zero, or a quotient of it, as one that is not resolved."""
    zeros = [_zero(each) for each in call.args]
    at = next((at for at, zero in enumerate(zeros) if zero is not None), None)
    if at is None or (at == 1 and call.op.name == "relax.divide"):
        return call.op.get_attr("FLegalize")(builder, call)
    name = call.op.name.removeprefix("relax.")
    operator = {"multiply": tirx.Mul, "divide": tirx.Div}[name]

    def compute(other: te.Tensor) -> te.Tensor:
        zero = tir.hidden(tirx.const(zeros[at], str(other.dtype)))

        def element(*index: Any) -> Any:
            return operator(*((zero, other(*index)) if at == 0 else (other(*index), zero)))

        return te.compute(other.shape, element, name=name)

    return builder.call_te(compute, call.args[1 - at], primfunc_name_hint=name)


def _zero(expr: Any) -> float | None:
    """The zero, with its sign, that a scalar constant of floats is."""
    if not is_tensor_constant(expr) or expr.ty.ndim != 0 or not is_float(str(expr.ty.dtype)):
        return None
    value = float(array_of(expr))
    return value if value == 0 else None


def _of_integers(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    left, right = call.args
    dtype = str(call.ty.dtype)
    tensors = isinstance(left.ty, relax.TensorType) and isinstance(right.ty, relax.TensorType)
    hides = dtype in ("int32", "int64") and is_computed(builder, left)
    if not tensors or not dtype.startswith(("int", "uint")) or (_is_usual(right) and not hides):
        return call.op.get_attr("FLegalize")(builder, call)
    name = call.op.name.removeprefix("relax.")
    function = getattr(topi, name)
    if _is_usual(right):
        by = tirx.const(int(array_of(right)), dtype) if right.ty.ndim == 0 else right
        return builder.call_te(lambda one, by: function(opaque(one), by), left, by, primfunc_name_hint=name)

    def compute(one: te.Tensor, other: te.Tensor) -> te.Tensor:
        divisor = te.compute(other.shape, lambda *at: _divisor(other(*at)), name="divisor")
        divided = function(opaque(one) if hides else one, divisor)

        def element(*at: Any) -> Any:
            negative = tirx.const(0, dtype) - read(one, at) if name.endswith("divide") else tirx.const(0, dtype)
            return tirx.Select(tirx.EQ(read(other, at), tirx.const(-1, dtype)), negative, divided(*at))

        return divided if dtype.startswith("uint") else te.compute(divided.shape, element, name="by_less")

    return builder.call_te(compute, left, right, primfunc_name_hint=name)


def _divisor(value: Any) -> Any:
    """The divisor, or 1 for what the element is not divided by."""
    dtype = str(value.ty.dtype)
    stops = tirx.EQ(value, tirx.const(0, dtype))
    if dtype.startswith("int"):
        stops = tirx.Or(stops, tirx.EQ(value, tirx.const(-1, dtype)))
    return tirx.Select(stops, tirx.const(1, dtype), value)


def read(tensor: te.Tensor, at: tuple[Any, ...]) -> Any:
    """Return the element of a tensor that is broadcast to indices `at`."""
    own = at[len(at) - len(tensor.shape) :]
    return tensor(*(0 if getattr(size, "value", None) == 1 else i for size, i in zip(tensor.shape, own, strict=True)))


def _is_usual(expr: Any) -> bool:
    """Whether a divisor is a constant that divides."""
    return is_tensor_constant(expr) and not bool(((array_of(expr) == 0) | (array_of(expr) == -1)).any())


DIVISION = {
    "relax.divide": _divide,
    "relax.multiply": _with_zero,
    **{f"relax.{name}": _of_integers for name in ("floor_divide", "floor_mod", "mod")},
}
