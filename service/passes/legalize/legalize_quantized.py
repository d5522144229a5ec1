"""Quantization to TIR: halves round to even, results saturate, and zero points are subtracted in int32.

TVM's own TE wraps a difference of bytes by its type rules, and multiplies in the type of the scale. Ours is what ONNX
and torch specify, to the bit: `q = clip(nearbyint(x / scale) + zero)` and `x = float(int32(q) - int32(zero)) * scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from relaxc.service.passes.common.constants import array_of, constant, is_tensor_constant
from relaxc.service.passes.legalize.legalize_float8 import float8_legalizers
from relaxc.service.passes.precision.dtypes import FLOAT8

__all__ = ["QUANTIZED", "QUANTIZED_BY_CASTS", "QUANTIZED_BY_FMA"]

_Rule = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_LEAST, _MOST = 1e-30, 1e30
"""Scales between which nothing overflows, or is subnormal, on the way to a quotient of a byte."""

_ROUNDS = 1.5 * 2**23
"""A float32 that has its last digit before the point: what is added to it is rounded to a whole number, halves to even,
and its low bits are that number's."""


def _quantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis, dtype = int(call.attrs.axis), str(call.attrs.out_dtype)

    def quantize(data: te.Tensor, *given: te.Tensor) -> te.Tensor:
        *scales, zero = given
        low, high = (tirx.const(float(bound.value), "float32") for bound in _range(dtype))

        def element(*at: Any) -> Any:
            scaled = data(*at).astype("float32")
            for scale in scales:
                scaled = scaled / _at(scale, at, axis).astype("float32")
            moved = tirx.nearbyint(scaled) + _at(zero, at, axis).astype("float32")
            return te.min(te.max(moved, low), high).astype(dtype)  # the lowest for NaN

        return te.compute(data.shape, element, name="quantize")

    data, scale, zero = call.args
    scales = [] if _known(scale) == 1 else [scale]
    return builder.call_te(quantize, data, *scales, zero, primfunc_name_hint="quantize")


def _quantize_by_fma(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The same to bytes with a known scale and zero point, without a division.

    `x / s` is `y = x * r` with one step of Newton's method, `y + r * (x - y * s)`, r being 1 / s rounded: correctly
    rounded (Markstein, 'Computation of elementary functions on the IBM RISC System/6000 processor', 1990), for x is
    brought into the range of the bytes first. That is the lowest for NaN.
    """
    scale, zero = (_known(argument) for argument in call.args[1:])
    dtype = str(call.attrs.out_dtype)
    if dtype not in ("uint8", "int8") or scale is None or zero is None or not _LEAST < scale < _MOST:
        return _quantize(builder, call)
    low, high = (np.float32(int(bound.value) - zero) * np.float32(scale) for bound in _range(dtype))
    bounds = [np.float32(each).view(np.int32) for each in (low, high)]  # as bits, by which KeepNan knows them
    numbers = [] if scale == 1 else [np.float32(scale), np.float32(1) / np.float32(scale)]

    def quantize(data: te.Tensor, *given: te.Tensor) -> te.Tensor:
        low, high = (tirx.reinterpret("float32", bound()) for bound in given[:2])
        scales, zeros = [each() for each in given[2 : 2 + len(numbers)]], given[2 + len(numbers) :]

        def element(*at: Any) -> Any:
            within = te.min(te.max(data(*at).astype("float32"), low), high)
            quotient = _quotient(within, *scales) if scales else within
            steps = tirx.reinterpret("int32", quotient + tirx.const(_ROUNDS, "float32"))
            return sum((zero() for zero in zeros), steps).astype(dtype)

        return te.compute(data.shape, element, name="quantize")

    constants = [
        *map(constant, [*bounds, *numbers]),
        *_unless_zero(zero),
    ]  # fused behind a contraction as scalars alone
    return builder.call_te(quantize, call.args[0], *constants, primfunc_name_hint="quantize")


def _dequantize_known(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Dequantization without a zero point where that is known to be 0."""
    scale, zero = (_known(argument) for argument in call.args[1:])
    if scale is None or zero != 0:
        return _dequantize(builder, call)
    dtype = str(call.attrs.out_dtype)

    def dequantize(data: te.Tensor, by: te.Tensor) -> te.Tensor:
        return te.compute(
            data.shape,
            lambda *at: (data(*at).astype("int32").astype("float32") * by()).astype(dtype),
            name="dequantize",
        )

    scale_of_all = constant(np.float32(scale))
    return builder.call_te(dequantize, call.args[0], scale_of_all, primfunc_name_hint="dequantize")


def _unless_zero(zero: float) -> list[relax.Constant]:
    return [constant(np.int32(zero))] if zero else []


def _known(expr: relax.Expr) -> float | None:
    """The number that a constant of one element is."""
    return float(array_of(expr).reshape(())) if is_tensor_constant(expr) and array_of(expr).size == 1 else None


def _quotient(within: Any, by: Any, reciprocal: Any) -> Any:
    near = within * reciprocal
    return _fma(_fma(-near, by, within), reciprocal, near)


def _fma(left: Any, right: Any, addend: Any) -> Any:
    return tirx.call_llvm_pure_intrin("float32", "llvm.fma", left, right, addend)


def _dequantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis, dtype = int(call.attrs.axis), str(call.attrs.out_dtype)

    def dequantize(data: te.Tensor, scale: te.Tensor, zero: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            steps = data(*at).astype("int32") - _at(zero, at, axis).astype("int32")
            return (steps.astype("float32") * _at(scale, at, axis).astype("float32")).astype(dtype)

        return te.compute(data.shape, element, name="dequantize")

    return builder.call_te(dequantize, *call.args, primfunc_name_hint="dequantize")


def _range(dtype: str) -> tuple[Any, Any]:
    return tirx.min_value(dtype), tirx.max_value(dtype)


def _at(parameter: te.Tensor, indices: Sequence[Any], axis: int) -> Any:
    """The scale or zero point of an element: one for all, or one for each index of an axis."""
    if all(isinstance(size, tirx.IntImm) and int(size) == 1 for size in parameter.shape):
        return parameter(*[0] * len(parameter.shape))
    return parameter(indices[axis])


def _of_both(quantize: _Rule, dequantize: _Rule, *, by_casts: bool = False) -> dict[str, _Rule]:
    """The rules for bytes, and those for 8-bit floats where a call has these."""
    floats = float8_legalizers(by_casts=by_casts)

    def either(name: str, of_bytes: _Rule) -> _Rule:
        def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            is_float = FLOAT8 in (str(call.attrs.out_dtype), str(call.args[0].ty.dtype))
            return (floats[name] if is_float else of_bytes)(builder, call)

        return legalized

    rules = {"relax.quantize": quantize, "relax.dequantize": dequantize}
    return {name: either(name, rule) for name, rule in rules.items()}


QUANTIZED = _of_both(_quantize, _dequantize)
QUANTIZED_BY_CASTS = _of_both(_quantize, _dequantize, by_casts=True)
"""For devices that convert 8-bit floats themselves: since sm_89."""
QUANTIZED_BY_FMA = _of_both(_quantize_by_fma, _dequantize_known)
"""For CPUs that multiply and add with one rounding."""
