"""Convolutions of images of floats and bytes in NHWC: dense, depthwise, of few channels; their weights are permuted."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from relaxc.schedules.cuda.conv import compute
from relaxc.schedules.cuda.conv.compute import VECTOR, Windows
from relaxc.schedules.cuda.gemm.compute import takes_bytes
from relaxc.schedules.ir import tir
from relaxc.service.passes.common.constants import array_of, constant
from relaxc.service.passes.common.images import pair, sides
from relaxc.service.passes.common.rewrite import dims_of, is_tensor_constant, op_name
from relaxc.service.passes.layout.nhwc_images import INJECTIVE, MAX_TAPS, TO_NCHW, NhwcImages, Rule, sizes_of
from relaxc.service.passes.precision.dtypes import BYTES

__all__ = ["RULES"]

_ROW = 64
"""Elements of a row of the kernel that are one step of the sum."""
_MAX_STEP = 8


def _conv2d(images: NhwcImages, call: relax.Call) -> relax.Var | None:
    data, weight = call.args
    attrs, shape = call.attrs, dims_of(data)
    weight = images.binding(weight) if isinstance(weight, relax.Var) else weight
    if shape is None or not isinstance(shape[1], int) or not is_tensor_constant(weight):
        return None
    of_bytes = _is_of_bytes(call, data, weight)
    if not of_bytes and (str(data.ty.dtype) not in images.taken or data.ty.dtype != weight.ty.dtype):
        return None
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or "NCHW") != ("NCHW", "OIHW", "NCHW"):
        return None
    filters, depth, *kernel = sizes_of(weight)
    top, left, _, right = sides(attrs.padding)
    windows = Windows("taps", pair(kernel), pair(attrs.strides), (top, left), pair(attrs.dilation))
    of_patches = not of_bytes and _is_of_patches(images, call, windows, depth)
    if filters % VECTOR or (max(windows.strides) > _MAX_STEP and not of_patches):
        return None
    out_h, out_w = sizes_of(call)[2:]
    array, groups = array_of(weight), int(attrs.groups)
    result = None
    if of_bytes:
        if groups == 1 and takes_bytes(depth, filters):
            result = _dense(images, data, array, windows, (out_h, out_w))
    elif of_patches:
        result = _of_patches(images, data, array, (out_h, out_w))
    elif groups == shape[1] == filters and depth == 1:
        result = _depthwise(images, data, array, windows, (out_h, out_w))
    elif groups == 1 and shape[1] % VECTOR == 0:
        result = _dense(images, data, array, windows, (out_h, out_w))
    elif groups == 1 and shape[1] < VECTOR and kernel[1] * VECTOR <= _ROW and windows.dilation[1] == 1:
        result = _of_few_channels(images, data, array, windows, (out_h, out_w), right)
    if result is None:
        return None
    if of_bytes:
        images.convolutions += 1
    else:
        images.saw(str(data.ty.dtype))
    return images.cast(result, str(call.ty.dtype))


def _is_of_bytes(call: relax.Call, data: relax.Expr, weight: relax.Expr) -> bool:
    """Whether bytes are convolved, and summed in int32."""
    return str(call.ty.dtype) == "int32" and all(str(each.ty.dtype) in BYTES for each in (data, weight))


def _is_of_patches(images: NhwcImages, call: relax.Call, windows: Windows, depth: int) -> bool:
    """Whether windows are beside each other, and too long or of too few channels to be read as taps or rows."""
    kernel = windows.kernel
    beside = windows == Windows("taps", kernel, kernel) and not any(sides(call.attrs.padding))
    large = max(kernel) > _MAX_STEP or (depth < VECTOR and kernel[1] * VECTOR > _ROW)
    whole = int(call.attrs.groups) == 1 and depth * prod(kernel) % VECTOR == 0
    return beside and large and whole and call.args[0] not in images.last


def _of_patches(images: NhwcImages, data: relax.Expr, array: Any, out: tuple[Any, Any]) -> relax.Var:
    """A product whose rows are the patches of the image, each read once."""
    filters, _, *kernel = array.shape
    taken = partial(compute.patches, kernel=tuple(kernel), out=out)
    rows = images.te(taken, images.visited(data), name="patches", pattern=INJECTIVE)
    return images.te(compute.pointwise, rows, constant(array.reshape(filters, -1)), name="conv2d")


def _depthwise(
    images: NhwcImages, data: relax.Expr, array: Any, windows: Windows, out: tuple[Any, Any]
) -> relax.Var | None:
    if prod(windows.kernel) > MAX_TAPS:
        return None
    packed = constant(np.ascontiguousarray(array[:, 0].transpose(1, 2, 0)))
    windows = Windows("depthwise", windows.kernel, windows.strides, windows.padding, windows.dilation)
    function = partial(compute.depthwise_conv2d, windows=windows, out=out)
    return images.te(function, images.image(data), packed, name="depthwise_conv2d")


def _dense(images: NhwcImages, data: relax.Expr, array: Any, windows: Windows, out: tuple[Any, Any]) -> relax.Var:
    same = all(tir.same_size(*pair) for pair in zip(out, sizes_of(data)[2:], strict=True))
    if windows == Windows("taps", (1, 1), dilation=windows.dilation) and same:
        return images.te(compute.pointwise, images.image(data), constant(array[:, :, 0, 0]), name="conv2d")
    packed = constant(np.ascontiguousarray(array.transpose(2, 3, 0, 1)))
    return images.te(partial(compute.conv2d, windows=windows, out=out), images.image(data), packed, name="conv2d")


def _of_few_channels(
    images: NhwcImages, data: relax.Expr, array: Any, windows: Windows, out: tuple[Any, Any], right: int
) -> relax.Var:
    """The image gets 8 channels, and the padding of its lines: a row of the kernel is one piece of it then."""
    channels, left = array.shape[1], windows.padding[1]
    packed = np.pad(array.transpose(2, 0, 3, 1), ((0, 0), (0, 0), (0, 0), (0, VECTOR - channels)))
    windows = Windows("rows", windows.kernel, windows.strides, (windows.padding[0], 0), windows.dilation)
    width = sizes_of(data)[3] + left + right
    if isinstance(width, int):
        width = max(width, (out[1] - 1) * windows.strides[1] + windows.kernel[1])
    # What narrows the image does so here: a cast in another kernel would write it once more.
    bound = images.binding(data)
    narrows = bound is not None and op_name(bound) == "relax.astype" and data not in images.last
    wide = bound.args[0] if narrows else data
    spread = partial(compute.spread, left=left, width=width + width % 2, dtype=str(data.ty.dtype))
    source = images.last.get(wide)
    if source is not None:
        source = images.emit(relax.op.permute_dims(source, TO_NCHW))
    image = images.te(spread, images.visited(wide) if source is None else source, name="spread", pattern=INJECTIVE)
    function = partial(compute.rows_conv2d, windows=windows, out=out)
    return images.te(function, image, constant(np.ascontiguousarray(packed)), name="conv2d")


RULES: dict[str, Rule] = {"relax.nn.conv2d": _conv2d}
