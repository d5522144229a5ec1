"""Depthwise convolutions on `NCHW[v]c` and on NHWC as tensor expressions, and the packing of their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, topi

from relaxc.schedules.cpu.conv.blocked_compute import fill, pad, results
from relaxc.schedules.ir.types import Expr
from relaxc.schedules.operators import Depthwise2d
from relaxc.schedules.plan import PLAN, Plan

__all__ = ["depthwise_conv2d", "pack_weight"]

Array = np.ndarray[Any, Any]


def pack_weight(weight: Array, lanes: int) -> Array:
    """Return `C1HW` as `CHW[lanes]c`, or as `HWC` where `lanes` is 0."""
    if not lanes:
        return np.ascontiguousarray(weight[:, 0].transpose(1, 2, 0))
    filled = fill(weight[:, 0], 0, lanes)
    c, h, w = filled.shape
    return np.ascontiguousarray(filled.reshape(c // lanes, lanes, h, w).transpose(0, 2, 3, 1))


def depthwise_conv2d(data: te.Tensor, weight: te.Tensor, *, plan: Plan) -> te.Tensor:
    """Return `C[n, c, h, w, v] += A[n, c, h*s + r*d, w*s + q*d, v] * W[c, r, q, v]` on zero-padded A.

    Or `C[n, h, w, c] += A[n, h*s + r*d, w*s + q*d, c] * W[r, q, c]` where the plan has no blocks. The last stage
    copies: the sums are then in registers whether or not something else is fused behind them.
    """
    op: Depthwise2d = plan.operator  # type: ignore[assignment]  # plans of this template are of these
    blocked = plan.parameters["block"] > 0
    if data.dtype != op.accumulate:
        narrow = data
        data = te.compute(narrow.shape, lambda *at: narrow[at].astype(op.accumulate), name="widened")
    source = pad(data, op.padding) if blocked else _pad_last(data, op)
    (stride_h, stride_w), (dilation_h, dilation_w) = op.strides, op.dilation
    r, q = (te.reduce_axis((0, size), name=name) for size, name in zip(op.kernel, "rq", strict=True))

    def term(h: Expr, w: Expr, before: tuple[Expr, ...], block: tuple[Expr, ...], v: Expr) -> Expr:
        taken = source[(*before, h * stride_h + r * dilation_h, w * stride_w + q * dilation_w, v)]
        return te.sum(taken.astype(op.accumulate) * weight[(*block, r, q, v)].astype(op.accumulate), axis=[r, q])

    def in_blocks(n: Expr, c: Expr, h: Expr, w: Expr, v: Expr) -> Expr:
        return term(h, w, (n, c), (c,), v)

    def channels_last(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        return term(h, w, (n,), (), c)

    rows, columns = results(op, data.shape[2:4] if blocked else data.shape[1:3])
    shape = (*data.shape[: 2 if blocked else 1], rows, columns, data.shape[-1])
    sums = te.compute(
        shape, in_blocks if blocked else channels_last, name="depthwise_conv2d", attrs={PLAN: plan.to_json()}
    )
    return te.compute(shape, lambda *index: sums[index], name="written")


def _pad_last(data: te.Tensor, op: Depthwise2d) -> te.Tensor:
    top, left, bottom, right = op.padding
    return topi.nn.pad(data, (0, top, left, 0), (0, bottom, right, 0), 0.0, name="pad") if any(op.padding) else data
