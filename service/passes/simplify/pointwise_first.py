"""1x1 convolutions before the upsampling and the concatenations that they read: the work of the pixels before it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.common.rewrite import Scope, is_tensor_constant, op_name, rewrite_calls, static_shape

__all__ = ["PointwiseFirst"]

_CONV = "relax.nn.conv2d"
_RESAMPLES = ("relax.take", "relax.image.resize2d")


@tvm.transform.module_pass(opt_level=0, name="PointwiseFirst")
class PointwiseFirst:
    """A 1x1 convolution mixes the channels of each pixel, and resampling the pixels of each channel: they commute.

        conv(resample(x), W)   →   resample(conv(x, W))                where pixels become more and channels not
        conv(concat(x, y), W)  →   conv(x, W[:, :k]) + conv(y, W[:, k:])   where x or y can then be resampled later

    Sums are made in another order. Values that something else reads too stay where they are.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with such convolutions before; the same object if it has none."""
        return rewrite_calls(module, {"nn.conv2d": _move})


def _move(call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, weight = call.args
    shape = static_shape(weight)
    if shape is None or not is_tensor_constant(weight) or not _is_pointwise(call, shape):
        return None
    return _before_resample(call, scope) if op_name(scope.value(data)) in _RESAMPLES else _before_concat(call, scope)


def _is_pointwise(call: relax.Call, weight: tuple[int, ...]) -> bool:
    attrs = call.attrs
    plain = {int(v) for v in attrs.strides} == {1} and not any(int(v) for v in attrs.padding)
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout
    return plain and weight[2:] == (1, 1) and int(attrs.groups) == 1 and layouts == ("NCHW", "OIHW", "NCHW")


def _before_resample(call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, weight = call.args
    outputs, inputs, *_ = static_shape(weight) or (0, 0)
    if not _grows(data, scope) or outputs > inputs:
        return None
    resample = scope.value(data)
    source, *places = resample.args
    early = scope.emit(relax.Call(call.op, [source, weight], call.attrs))
    return relax.Call(resample.op, [early, *places], resample.attrs)


def _grows(expr: relax.Expr, scope: Scope) -> bool:
    """Whether it is an image resampled to more pixels, along its sides alone, that is read once."""
    resample = scope.call(expr, *_RESAMPLES)
    if resample is None or not scope.used_once(expr):
        return False
    before, after = static_shape(resample.args[0]), static_shape(resample)
    if before is None or after is None or len(before) != len(after) or before[:2] != after[:2]:
        return False
    if op_name(resample) == "relax.take":
        axis = resample.attrs.axis
        along_side = axis is not None and int(axis) % 4 >= 2
    else:
        # Cropping may take places outside of the image, where the value is a constant that no weight has scaled.
        crops = str(resample.attrs.coordinate_transformation_mode) == "tf_crop_and_resize"
        along_side = resample.attrs.layout == "NCHW" and not crops
    return along_side and prod(after) > prod(before)


def _before_concat(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """Where the sum of the results moves no more than the concatenation did."""
    data, weight = call.args
    concat = scope.call(data, "relax.concat")
    if concat is None or not scope.used_once(data) or concat.attrs.axis is None or int(concat.attrs.axis) % 4 != 1:
        return None
    joined = scope.value(concat.args[0])
    fields = list(joined.fields) if isinstance(joined, relax.Tuple) else []
    shapes = [static_shape(field) for field in fields]
    taps = weight.value.numpy()
    if None in shapes or taps.shape[0] * len(fields) > taps.shape[1] or not any(_grows(f, scope) for f in fields):
        return None
    ends = np.cumsum([shape[1] for shape in shapes if shape is not None])[:-1]
    parts = np.split(taps, ends, axis=1)
    attrs, op = call.attrs, call.op
    results = [
        scope.emit(relax.Call(op, [field, constant(part)], attrs)) for field, part in zip(fields, parts, strict=True)
    ]
    for result in results[1:]:
        results[0] = scope.emit(relax.op.add(results[0], result))
    return results[0]
