"""Quantization to TIR: halves round to even, results saturate, and zero points are subtracted in int32.

TVM's own TE wraps a difference of bytes by its type rules, and multiplies in the type of the scale. Ours is what ONNX
and torch specify, to the bit: `q = clip(nearbyint(x / scale) + zero)` and `x = float(int32(q) - int32(zero)) * scale`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

__all__ = ["QUANTIZED"]


def _quantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis, dtype = int(call.attrs.axis), str(call.attrs.out_dtype)

    def quantize(data: te.Tensor, scale: te.Tensor, zero: te.Tensor) -> te.Tensor:
        low, high = (tirx.const(float(bound.value), "float32") for bound in _range(dtype))

        def element(*at: Any) -> Any:
            scaled = data(*at).astype("float32") / _at(scale, at, axis).astype("float32")
            moved = tirx.nearbyint(scaled) + _at(zero, at, axis).astype("float32")
            return te.min(te.max(moved, low), high).astype(dtype)  # the lowest for NaN

        return te.compute(data.shape, element, name="quantize")

    return builder.call_te(quantize, *call.args, primfunc_name_hint="quantize")


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


QUANTIZED = {"relax.quantize": _quantize, "relax.dequantize": _dequantize}
