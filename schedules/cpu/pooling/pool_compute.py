"""Tensor expressions of pooling on `NCHW[v]c`, in the stages that its template schedules."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import te, topi

from relaxc.schedules.cpu.conv.blocked_compute import results
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.ir.extremes import largest, least
from relaxc.schedules.ir.tir import product
from relaxc.schedules.ir.types import Expr
from relaxc.schedules.operators import Pool2d
from relaxc.schedules.plan import PLAN, Plan

__all__ = ["pool_image", "pool_windows"]


def pool_windows(data: te.Tensor, *, plan: Plan) -> te.Tensor:
    """Return `C[n, c, h, w, v]`: the maximum or mean of a window of A.

    Padding is never a maximum; in a mean it counts as zeros, or not at all.
    """
    op: Pool2d = plan.operator  # type: ignore[assignment]  # plans of this template are of pools
    kind, kernel, strides, dilation, padding = op.reduce, op.kernel, op.strides, op.dilation, op.padding
    batch, blocks, height, width, lanes = data.shape
    if is_float(str(data.dtype)) and str(data.dtype) != op.accumulate:
        narrow = data
        data = te.compute(narrow.shape, lambda *at: narrow[at].astype(op.accumulate), name="widened")
    source = _padded(data, padding, least(str(data.dtype)) if kind == "max" else 0.0)
    taps = [te.reduce_axis((0, size), name=name) for size, name in zip(kernel, "rq", strict=True)]
    reduce: Any = largest if kind == "max" else te.sum

    def element(n: Expr, c: Expr, h: Expr, w: Expr, v: Expr) -> Expr:
        y, x = (o * s + t * d for o, s, t, d in zip((h, w), strides, taps, dilation, strict=True))
        return reduce(source[n, c, y, x, v], axis=taps)

    shape = (batch, blocks, *results(op, (height, width)), lanes)
    found = te.compute(shape, element, name="pool2d", attrs={PLAN: plan.to_json()})
    if kind == "max":
        return te.compute(shape, lambda *index: found[index].astype(op.out), name="written")

    def mean(n: Expr, c: Expr, h: Expr, w: Expr, v: Expr) -> Expr:
        sides = [(h, 0, height), (w, 1, width)]
        counts = [_taps_inside(o, size, kernel[a], strides[a], dilation[a], padding[a]) for o, a, size in sides]
        if op.counts_padding or not any(padding):
            return found[n, c, h, w, v] / float(prod(kernel))
        return found[n, c, h, w, v] / (counts[0] * counts[1]).astype(data.dtype)

    return te.compute(shape, mean, name="mean")


def _padded(data: te.Tensor, padding: tuple[int, int, int, int], value: float) -> te.Tensor:
    if not any(padding):
        return data
    top, left, bottom, right = padding
    return topi.nn.pad(data, (0, 0, top, left, 0), (0, 0, bottom, right, 0), value, name="pad")


def _taps_inside(out: Expr, size: Expr, kernel: int, stride: int, dilation: int, before: int) -> Expr:
    """How many taps of the window of element `out` are in the image, along one axis; at least one."""
    first = out * stride - before
    skipped = te.max((dilation - 1 - first) // dilation, 0)
    inside = te.min((size - first + dilation - 1) // dilation, kernel)
    return te.max(inside - skipped, 1)


def pool_image(data: te.Tensor, *, plan: Plan) -> te.Tensor:
    """Return `C[n, c, 0, 0, v]`: the maximum or mean of each row, of each of the plan's strips, and of these."""
    op: Pool2d = plan.operator  # type: ignore[assignment]
    kind, strips = op.reduce, plan.parameters["strips"]
    batch, blocks, height, width, lanes = data.shape
    reduce: Any = largest if kind == "max" else te.sum
    high = height // strips
    s, y, w = (te.reduce_axis((0, size), name=name) for size, name in ((strips, "s"), (high, "y"), (width, "w")))

    def row(n: Expr, c: Expr, strip: Expr, y: Expr, v: Expr) -> Expr:
        return reduce(data[n, c, strip * high + y, w, v], axis=w)

    shape = (batch, blocks, strips, high, lanes)
    rows = te.compute(shape, row, name="pool_rows", attrs={PLAN: plan.to_json()})
    parts = te.compute(
        (batch, blocks, strips, lanes), lambda n, c, s, v: reduce(rows[n, c, s, y, v], axis=y), name="pool_strips"
    )
    image = te.compute((batch, blocks, lanes), lambda n, c, v: reduce(parts[n, c, s, v], axis=s), name="pool_image")
    pixels = product([height, width])
    scale = 1.0 if kind == "max" else float(pixels) if isinstance(pixels, int) else pixels.astype(op.accumulate)
    return te.compute((batch, blocks, 1, 1, lanes), lambda n, c, y, x, v: image[n, c, v] / scale, name="pooled")
