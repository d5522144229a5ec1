"""Division by what a CPU or TVM's arithmetic cannot divide by.

x / 0.0              →  x * inf                   TVM refuses to write the division down
i // j, i % j        →  by 1 where j is 0         which stops the process; ONNX and C leave the result open
i // -1, i % -1      →  -i, 0                     the least integer by -1 stops it too; its negative wraps
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx, topi

from relaxc.schedules.ir.dtypes import is_float
from relaxc.service.passes.common.constants import array_of, is_tensor_constant

__all__ = ["DIVISION"]


def _divide(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    left, right = call.args
    zero = _zero(right)
    if zero is None:
        return call.op.get_attr("FLegalize")(builder, call)
    infinity = tirx.const(math.copysign(math.inf, zero), str(right.ty.dtype))
    return builder.call_te(topi.multiply, left, infinity, primfunc_name_hint="divide")


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
    if not tensors or not dtype.startswith(("int", "uint")) or _is_usual(right):
        return call.op.get_attr("FLegalize")(builder, call)
    name = call.op.name.removeprefix("relax.")

    def compute(one: te.Tensor, other: te.Tensor) -> te.Tensor:
        divided = getattr(topi, name)(one, te.compute(other.shape, lambda *at: _divisor(other(*at)), name="divisor"))

        def element(*at: Any) -> Any:
            negative = tirx.const(0, dtype) - _read(one, at) if name == "floor_divide" else tirx.const(0, dtype)
            return tirx.Select(tirx.EQ(_read(other, at), tirx.const(-1, dtype)), negative, divided(*at))

        return divided if dtype.startswith("uint") else te.compute(divided.shape, element, name="by_less")

    return builder.call_te(compute, left, right, primfunc_name_hint=name)


def _divisor(value: Any) -> Any:
    """The divisor, or 1 for what the element is not divided by."""
    dtype = str(value.ty.dtype)
    stops = tirx.EQ(value, tirx.const(0, dtype))
    if dtype.startswith("int"):
        stops = tirx.Or(stops, tirx.EQ(value, tirx.const(-1, dtype)))
    return tirx.Select(stops, tirx.const(1, dtype), value)


def _read(tensor: te.Tensor, at: tuple[Any, ...]) -> Any:
    own = at[len(at) - len(tensor.shape) :]
    return tensor(*(0 if getattr(size, "value", None) == 1 else i for size, i in zip(tensor.shape, own, strict=True)))


def _is_usual(expr: Any) -> bool:
    """Whether a divisor is a constant that divides."""
    return is_tensor_constant(expr) and not bool(((array_of(expr) == 0) | (array_of(expr) == -1)).any())


DIVISION = {
    "relax.divide": _divide,
    **{f"relax.{name}": _of_integers for name in ("floor_divide", "floor_mod", "mod")},
}
