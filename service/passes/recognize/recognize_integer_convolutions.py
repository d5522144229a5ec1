"""Convolutions of quantized images become convolutions of bytes, summed in int32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from service.passes.common.constants import Array, constant
from service.passes.common.images import sides
from service.passes.common.rewrite import Scope, rewrite_calls, static_shape
from service.passes.recognize.recognize_integer_products import (
    MOST_STEPS,
    Quantized,
    dequantized,
    evaluated,
    quantized,
)

__all__ = ["RecognizeIntegerConvolutions"]


@tvm.transform.module_pass(opt_level=0, name="RecognizeIntegerConvolutions")
class RecognizeIntegerConvolutions:
    """`Y = conv2d(X, W)` of a quantized image and constant quantized filters computes on the bytes.

        conv2d(dequantize(x, s, z), dequantize(w, t, 0))   →   float(conv2d(x, w) - z * sum of each filter) * (s * t)

    The filters have zero points of 0. With a padding, which is 0 in floats and so `z` in bytes, z is 0 too: it is after
    a ReLU. `takes` says of a convolution's channels and filters whether there is a template for bytes.
    """

    def __init__(self, takes: Callable[[int, int], bool]) -> None:
        self.takes = takes

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with convolutions of bytes; the same object if it has none."""
        return rewrite_calls(module, {"nn.conv2d": partial(_convolution, takes=self.takes)})


def _convolution(call: relax.Call, scope: Scope, *, takes: Callable[[int, int], bool]) -> relax.Expr | None:
    attrs = call.attrs
    if str(call.ty.dtype) != "float32" or int(attrs.groups) != 1 or static_shape(call.args[0]) is None:
        return None
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or "NCHW") != ("NCHW", "OIHW", "NCHW"):
        return None
    image, filters = quantized(call.args[0], scope, "float32"), _filters(call.args[1], scope)
    if image is None or filters is None or (image.zero is not None and any(sides(attrs.padding))):
        return None
    weights, scale = filters
    count, depth, *kernel = weights.shape
    if not takes(depth, count) or depth * int(np.prod(kernel)) > MOST_STEPS:
        return None
    return _of_bytes(call, scope, image, weights, scale)


def _of_bytes(call: relax.Call, scope: Scope, image: Quantized, weights: Array, scale: Array) -> relax.Expr:
    attrs = call.attrs
    total = scope.emit(
        relax.op.nn.conv2d(
            image.data, constant(weights), attrs.strides, attrs.padding, attrs.dilation, out_dtype="int32"
        )
    )
    if image.zero is not None:
        sums = constant(weights.sum(axis=(1, 2, 3), dtype=np.int32).reshape(-1, 1, 1))
        total = scope.emit(relax.op.subtract(total, scope.emit(relax.op.multiply(image.zero, sums))))
    factor = scope.emit(relax.op.multiply(relax.op.reshape(image.scale, ()), constant(scale.reshape(-1, 1, 1))))
    return relax.op.multiply(scope.emit(relax.op.astype(total, "float32")), factor)


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
