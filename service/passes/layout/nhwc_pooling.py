"""Pooling of images in NHWC, and means of all pixels of one."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np
from tvm import relax

from relaxc.schedules.cuda.conv import compute
from relaxc.schedules.cuda.conv.compute import Windows
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.common.images import elements_of_windows, pair, sides
from relaxc.service.passes.common.rewrite import dims_of
from relaxc.service.passes.layout.nhwc_images import MAX_TAPS, NhwcImages, Rule, is_pixel, sizes_of

__all__ = ["RULES"]


def _pool(images: NhwcImages, call: relax.Call, *, kind: str) -> relax.Var | None:
    (data,), attrs, shape = call.args, call.attrs, dims_of(call)
    source = images.source(data)
    if source is None or shape is None or attrs.layout != "NCHW" or (attrs.out_layout or "NCHW") != "NCHW":
        return None
    windows = Windows(kind, pair(attrs.pool_size), pair(attrs.strides), sides(attrs.padding)[:2], pair(attrs.dilation))
    if prod(windows.kernel) > MAX_TAPS or (kind == "sum" and attrs.ceil_mode):
        return None
    known = all(isinstance(size, int) for size in sizes_of(data)[2:])
    whole = known and sizes_of(data)[2:] == windows.kernel and is_pixel(call, (2, 3)) and not any(windows.padding)
    if kind == "sum" and whole:
        return _mean_of_pixels(images, source, str(call.ty.dtype))
    sizes = (*sizes_of(data)[2:], *shape[2:])
    if kind == "sum" and not all(isinstance(size, int) for size in sizes):
        return None  # how many elements are under a window depends on where the edges are
    pooled = images.te(partial(compute.pool, windows=windows, out=(shape[2], shape[3])), source, name="pool2d")
    if kind == "sum":
        elements = elements_of_windows(windows, sizes_of(data)[2:], shape[2:])
        count = np.array(float(prod(windows.kernel))) if attrs.count_include_pad else elements
        scale = (1.0 / count).reshape((1, *count.shape, 1) if count.ndim else ()).astype("float32")
        pooled = images.emit(relax.op.multiply(pooled, constant(scale)))
    return images.cast(pooled, str(call.ty.dtype))


def _adaptive(images: NhwcImages, call: relax.Call) -> relax.Var | None:
    (data,), attrs, shape = call.args, call.attrs, dims_of(call)
    source = images.source(data)
    if source is None or shape is None or attrs.layout != "NCHW" or not is_pixel(call, (2, 3)):
        return None
    return _mean_of_pixels(images, source, str(call.ty.dtype))


def _mean(images: NhwcImages, call: relax.Call) -> relax.Var | None:
    (data,), attrs = call.args, call.attrs
    source = images.source(data)
    if source is None or sorted(int(axis) % 4 for axis in attrs.axis or ()) != [2, 3]:
        return None
    return _mean_of_pixels(images, source, str(call.ty.dtype))


def _mean_of_pixels(images: NhwcImages, source: relax.Var, dtype: str) -> relax.Var | None:
    if not all(isinstance(size, int) for size in sizes_of(source)[1:3]):
        return None
    count = prod(sizes_of(source)[1:3])
    sums = images.te(compute.pixels, source, name="sum_of_pixels")
    return images.cast(images.emit(relax.op.multiply(sums, relax.const(1.0 / count, "float32"))), dtype)


RULES: dict[str, Rule] = {
    "relax.nn.max_pool2d": partial(_pool, kind="max"),
    "relax.nn.avg_pool2d": partial(_pool, kind="sum"),
    "relax.nn.adaptive_avg_pool2d": _adaptive,
    "relax.mean": _mean,
}
