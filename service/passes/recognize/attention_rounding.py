"""Quantizations within attention: of its scores, of its weights, and of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, tirx

from relaxc.service.passes.common.rewrite import Scope, scalar_of
from relaxc.service.passes.common.views import Bounds, View, look_through
from relaxc.service.passes.kernels.requantize import dequantized, quantized
from relaxc.service.passes.precision.dtypes import BYTES, is_low
from relaxc.service.passes.recognize.attention_operands import Tensors

__all__ = ["Rounding", "applied", "finished", "round_trip"]


@dataclass(frozen=True)
class Rounding:
    """A quantization to `dtype` by one scale and one zero point, or a dequantization to fp32."""

    dtype: str
    scale: relax.Expr
    zero: relax.Expr
    is_unit: bool
    """Whether the scale is known to be 1."""

    def bound(self, tensors: Tensors) -> Callable[[Sequence[Any], Any], Any]:
        """Return what it makes of a value, as a function of (tensors, value)."""
        scale, zero = tensors.number(self.scale), tensors.number(self.zero)

        def apply(given: Sequence[Any], value: Any) -> Any:
            by, less = scale(given), zero(given)
            if self.dtype == "float32":
                return dequantized(value, by, less)
            return quantized(value, None if self.is_unit else by, less, self.dtype)

        return apply


def applied(steps: Sequence[Rounding], tensors: Tensors) -> Callable[[Sequence[Any], Any], Any]:
    """Return what `steps` make of a value one after the other, as a function of (tensors, value)."""
    functions = [step.bound(tensors) for step in steps]

    def apply(given: Sequence[Any], value: Any) -> Any:
        for function in functions:
            value = function(given, value)
        return value

    return apply


def round_trip(
    expr: relax.Expr, scope: Scope, *, keeps_zero: bool = False
) -> tuple[tuple[Rounding, Rounding], relax.Expr] | None:
    """Return the quantization that `expr` is dequantized from, that dequantization, and what is quantized.

    None where anything else reads what lies between; and with `keeps_zero` where 0 becomes anything else.
    """
    outer = _rounding(expr, scope, "relax.dequantize")
    inner = None if outer is None else _rounding(outer[1], scope, "relax.quantize")
    if outer is None or inner is None or not (scope.used_once(expr) and scope.used_once(outer[1])):
        return None
    if keeps_zero and not _keeps_zero(inner[0], outer[0], scope):
        return None
    return (inner[0], outer[0]), inner[1]


def _keeps_zero(inner: Rounding, outer: Rounding, scope: Scope) -> bool:
    zero, less = scalar_of(scope, inner.zero), scalar_of(scope, outer.zero)
    low, high = (bound.value for bound in (tirx.min_value(inner.dtype), tirx.max_value(inner.dtype)))
    return zero is not None and zero == less and bool(low <= zero <= high)


def _rounding(expr: relax.Expr, scope: Scope, *names: str) -> tuple[Rounding, relax.Expr] | None:
    """The quantization or dequantization that `expr` is, by known numbers, and of what."""
    call = scope.call(expr, *names)
    if call is None:
        return None
    scale, zero = (scalar_of(scope, argument) for argument in call.args[1:])
    wide, narrow = (call.args[0], call) if str(call.op.name) == "relax.quantize" else (call, call.args[0])
    of_bytes = str(narrow.ty.dtype) in BYTES and {str(each.ty.dtype) for each in (wide, call.args[1])} == {"float32"}
    if scale is None or zero is None or not scale > 0 or not of_bytes or str(call.args[2].ty.dtype) not in BYTES:
        return None
    return Rounding(str(call.ty.dtype), call.args[1], call.args[2], scale == 1), call.args[0]


def finished(view: View, scope: Scope, bounds: Bounds) -> tuple[View, tuple[Rounding, ...]]:
    """Return what a result is before it is quantized, dequantized, rounded and moved; and these steps, innermost first.

    As far as nothing else reads what lies between. What is rounded last to 16 bits is no step: the store does that.
    """
    steps: list[Rounding] = []
    view = look_through(view, scope, bounds, once=True)
    cast = scope.call(view.source, "relax.astype")
    if cast is not None and _is_own(view.source, scope) and is_low(cast) and str(cast.args[0].ty.dtype) == "float32":
        view = look_through(replace(view, source=cast.args[0]), scope, bounds, once=True)
    while _is_own(view.source, scope):
        found = _rounding(view.source, scope, "relax.quantize", "relax.dequantize")
        if found is None:
            break
        steps.append(found[0])
        view = look_through(replace(view, source=found[1]), scope, bounds, once=True)
    return view, tuple(reversed(steps))


def _is_own(expr: relax.Expr, scope: Scope) -> bool:
    return not isinstance(expr, relax.Var) or scope.used_once(expr)
