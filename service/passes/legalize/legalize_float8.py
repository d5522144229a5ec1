"""Quantization to 8-bit floats, e4m3, to TIR: halves round to even, what is too large becomes the largest, 448.

TVM's own conversions take what is subnormal in 8 bits for 0, and what is too large for NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import relax, te, tirx

from relaxc.service.codes import FORMATS, code_of, number_of
from relaxc.service.passes.common.constants import array_of, is_tensor_constant
from relaxc.service.passes.precision.dtypes import FLOAT8

__all__ = ["float8_legalizers"]

Conversion = Callable[[Any], Any]


def float8_legalizers(*, by_casts: bool) -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
    """Return what legalizes `quantize` to and `dequantize` of e4m3, whose zero points are 0.

    `by_casts`: for a device that converts as said above; else by the bits of both.
    """
    narrow, wide = (_cast_to_float8, _cast_to_float32) if by_casts else (_to_float8, _to_float32)
    return {"relax.quantize": partial(_quantize, narrow), "relax.dequantize": partial(_dequantize, wide)}


def _quantize(narrow: Conversion, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis, (data, scale) = int(call.attrs.axis), call.args[:2]
    scales = [] if is_tensor_constant(scale) and (array_of(scale) == 1).all() else [scale]

    def quantize(data: te.Tensor, *scales: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            value = data(*at).astype("float32")
            for scale in scales:
                value = value / _at(scale, at, axis).astype("float32")
            return narrow(value)

        return te.compute(data.shape, element, name="quantize")

    return builder.call_te(quantize, data, *scales, primfunc_name_hint="quantize")


def _dequantize(wide: Conversion, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis, dtype = int(call.attrs.axis), str(call.attrs.out_dtype)

    def dequantize(data: te.Tensor, scale: te.Tensor) -> te.Tensor:
        return te.compute(
            data.shape,
            lambda *at: (wide(data(*at)) * _at(scale, at, axis).astype("float32")).astype(dtype),
            name="dequantize",
        )

    return builder.call_te(dequantize, *call.args[:2], primfunc_name_hint="dequantize")


def _at(scale: te.Tensor, indices: tuple[Any, ...], axis: int) -> Any:
    """The scale of an element: one for all, or one for each index of an axis."""
    if all(isinstance(size, tirx.IntImm) and int(size) == 1 for size in scale.shape):
        return scale(*[0] * len(scale.shape))
    return scale(indices[axis])


def _cast_to_float8(value: Any) -> Any:
    return value.astype(FLOAT8)


def _cast_to_float32(value: Any) -> Any:
    return value.astype("float32")


def _to_float8(value: Any) -> Any:
    return tirx.reinterpret(FLOAT8, code_of(value, FORMATS[FLOAT8]))


def _to_float32(value: Any) -> Any:
    return number_of(tirx.reinterpret("uint8", value), FORMATS[FLOAT8])
