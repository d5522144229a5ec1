"""Convolutions of quantized images become convolutions of bytes, summed in int32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.schedules.hardware import Cpu
from relaxc.service.passes.common.constants import Array, constant
from relaxc.service.passes.common.images import sides
from relaxc.service.passes.common.rewrite import Scope, rewrite_calls, static_shape
from relaxc.service.passes.recognize.recognize_integer_products import (
    MOST_STEPS,
    Quantized,
    dequantized,
    evaluated,
    quantized,
    readable,
)

__all__ = ["RecognizeIntegerConvolutions"]


@tvm.transform.module_pass(opt_level=0, name="RecognizeIntegerConvolutions")
class RecognizeIntegerConvolutions:
    """`Y = conv2d(X, W)` of a quantized image and constant quantized filters computes on the bytes.

        conv2d(dequantize(x, s, z), dequantize(w, t, 0))   →   float(conv2d(x, w) - z * sum of each filter) * (s * t)

    The filters have zero points of 0. A padding is 0 in floats and so `z` in bytes: where z is not 0, as it is after a
    ReLU, the image is padded before (on a CPU, where z is known). `takes` says of a convolution's channels and filters
    whether there is a template for bytes; of groups there is one on a CPU, where they fill vectors of sums. Depthwise
    ones compute in floats there:

        depthwise(dequantize(x, s, 0), W)   →   depthwise(float(x), W * s)

    whose template reads the bytes.
    """

    def __init__(self, takes: Callable[[int, int], bool], cpu: Cpu | None = None) -> None:
        self.takes = takes
        self.cpu = cpu

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with convolutions of bytes; the same object if it has none."""
        return rewrite_calls(module, {"nn.conv2d": partial(_convolution, takes=self.takes, cpu=self.cpu)})


def _convolution(
    call: relax.Call, scope: Scope, *, takes: Callable[[int, int], bool], cpu: Cpu | None
) -> relax.Expr | None:
    attrs = call.attrs
    if str(call.ty.dtype) != "float32" or static_shape(call.args[0]) is None:
        return None
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or "NCHW") != ("NCHW", "OIHW", "NCHW"):
        return None
    image, groups = quantized(call.args[0], scope, "float32"), int(attrs.groups)
    if image is None:
        return None
    if cpu is not None and groups == int(call.args[0].ty.shape[1]):
        return _depthwise(call, scope, image)
    filters = _filters(call.args[1], scope)
    if filters is None:
        return None
    weights, scale = filters
    count, depth, *kernel = weights.shape
    if not takes(depth, count) or depth * int(np.prod(kernel)) > MOST_STEPS:
        return None
    lanes = 0 if cpu is None else cpu.lanes("int32")
    if groups > 1 and not (lanes and depth % lanes == 0 == count // groups % lanes):
        return None
    if cpu is not None:
        image = readable(image, lanes, cpu, scope)
    return _of_bytes(call, scope, image, weights, scale, may_pad=cpu is not None)


def _of_bytes(
    call: relax.Call, scope: Scope, image: Quantized, weights: Array, scale: Array, *, may_pad: bool
) -> relax.Expr | None:
    attrs, data, padding = call.attrs, image.data, sides(call.attrs.padding)
    if image.zero is not None and any(padding):
        zero = evaluated(image.zero, scope) if may_pad else None
        if zero is None:
            return None
        top, left, bottom, right = padding
        data = scope.emit(relax.op.nn.pad(data, [0, 0, 0, 0, top, bottom, left, right], pad_value=float(zero)))
        padding = (0, 0, 0, 0)
    total = scope.emit(
        relax.op.nn.conv2d(
            data, constant(weights), attrs.strides, padding, attrs.dilation, int(attrs.groups), out_dtype="int32"
        )
    )
    if image.zero is not None:
        sums = constant(weights.sum(axis=(1, 2, 3), dtype=np.int32).reshape(-1, 1, 1))
        total = scope.emit(relax.op.subtract(total, scope.emit(relax.op.multiply(image.zero, sums))))
    factor = scope.emit(relax.op.multiply(relax.op.reshape(image.scale, ()), constant(scale.reshape(-1, 1, 1))))
    return relax.op.multiply(scope.emit(relax.op.astype(total, "float32")), factor)


def _depthwise(call: relax.Call, scope: Scope, image: Quantized) -> relax.Expr | None:
    """Integers in floats, whose sums are exact where the filters are integers times one scale."""
    attrs, scale = call.attrs, evaluated(image.scale, scope)
    if image.zero is not None or scale is None or str(image.data.ty.dtype) != "uint8":
        return None
    wide = scope.emit(relax.op.astype(image.data, "float32"))
    filters = scope.emit(relax.op.multiply(call.args[1], constant(scale.astype(np.float32).reshape(()))))
    return relax.op.nn.conv2d(wide, filters, attrs.strides, attrs.padding, attrs.dilation, int(attrs.groups))


def _filters(expr: relax.Expr, scope: Scope) -> tuple[Array, Array] | None:
    """The filters `OIHW` in int8, and the scale of each."""
    call = dequantized(expr, scope)
    parts = [evaluated(arg, scope) for arg in call.args] if call is not None else []
    if call is None or any(part is None for part in parts):
        return None
    weights, scale, zero = (part for part in parts if part is not None)
    if weights.dtype != np.int8 or weights.ndim != 4 or not weights.size or zero.any():
        return None
    if scale.size > 1 and int(call.attrs.axis) % 4 != 0:
        return None
    return weights, np.broadcast_to(scale.astype(np.float32).reshape(-1), weights.shape[:1])
