"""Pooling of blocked images, and what is computed of all pixels of one."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.operators import Pool2d
from relaxc.service.passes.common.images import ints, is_pixel, known, pair, sides
from relaxc.service.passes.layout.blocked_images import Blocked, BlockedImages, Rule

__all__ = ["RULES"]

_OUT_FUSABLE, _OPAQUE = 4, 8
"""TVM's patterns for fusion."""


def _pool(images: BlockedImages, call: relax.Call, *, reduce: str) -> Blocked | None:
    (data,), attrs = call.args, call.attrs
    if (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW") or attrs.ceil_mode:
        return None
    return _windows(
        images,
        data,
        reduce=reduce,
        kernel=ints(attrs.pool_size, 2),
        strides=pair(attrs.strides),
        dilation=ints(attrs.dilation, 2),
        padding=sides(attrs.padding),
        counts_padding=bool(attrs.count_include_pad),
    )


def _adaptive(images: BlockedImages, call: relax.Call) -> Blocked | None:
    (data,), attrs = call.args, call.attrs
    if data not in images.blocked or (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW"):
        return None
    if is_pixel(call):
        return _image(images, data, "avg")
    sizes, bins = (tuple(map(known, list(image.ty.shape)[2:])) for image in (data, call))
    if not all((*sizes, *bins)) or any(size % count for size, count in zip(sizes, bins, strict=True)):
        return None
    kernel = tuple(size // count for size, count in zip(sizes, bins, strict=True))
    return _windows(images, data, reduce="avg", kernel=kernel, strides=kernel)


def _over_pixels(images: BlockedImages, call: relax.Call, *, reduce: str) -> Blocked | None:
    (data,), attrs = call.args, call.attrs
    if data not in images.blocked or not attrs.keepdims or sorted(int(a) % 4 for a in attrs.axis or ()) != [2, 3]:
        return None
    return _image(images, data, reduce)


def _windows(images: BlockedImages, data: relax.Expr, **geometry: Any) -> Blocked | None:
    dtypes = planning.pool2d_dtypes(str(data.ty.dtype), geometry["reduce"])
    if data not in images.blocked or dtypes is None:
        return None
    op = Pool2d(**images.sizes(data), **geometry, **dtypes)
    return _planned(images, op, data, _OUT_FUSABLE)


def _image(images: BlockedImages, data: relax.Expr, reduce: str) -> Blocked | None:
    if planning.pool2d_dtypes(str(data.ty.dtype), "avg") is None:
        return None
    op = Pool2d(
        reduce=reduce, whole=True, kernel=pair([known(size) for size in list(data.ty.shape)[2:]]), **images.sizes(data)
    )
    return _planned(images, op, data, _OPAQUE)


def _planned(images: BlockedImages, op: Pool2d, data: relax.Expr, op_pattern: int) -> Blocked:
    plan, found = images.planner.plan(op), images.blocked[data]
    result = images.te(planning.computation(plan), found.var, name=planning.kernel_name(plan), op_pattern=op_pattern)
    return Blocked(result, found.channels)


RULES: dict[str, Rule] = {
    "relax.nn.max_pool2d": partial(_pool, reduce="max"),
    "relax.nn.avg_pool2d": partial(_pool, reduce="avg"),
    "relax.nn.adaptive_avg_pool2d": _adaptive,
    "relax.mean": partial(_over_pixels, reduce="avg"),
    "relax.max": partial(_over_pixels, reduce="max"),
}
