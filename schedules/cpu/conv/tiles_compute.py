"""Convolutions by tile registers (AMX) as tensor expressions: the image is regrouped, and then summed up."""

from __future__ import annotations

import tvm
from tvm import te

from relaxc.schedules.cpu.common.dot_product import steps_of
from relaxc.schedules.cpu.conv.tiles_layout import Layout
from relaxc.schedules.ir.types import Expr
from relaxc.schedules.operators import Conv2d
from relaxc.schedules.plan import PLAN, Plan

__all__ = ["REGROUPED", "conv2d"]

REGROUPED = "regrouped"


def conv2d(data: te.Tensor, weight: te.Tensor, gate: te.Tensor | None = None, *, plan: Plan) -> te.Tensor:
    """Compute `C[n, o, h, w, v]` of the image in blocks of channels and the packed `W[o, i, r, q, k, v, j]`.

        G[n, i, f, y, x, d] = A[n, channel(i, d), row(f, y), column(f, x)]             0 outside
        C[n, o, h, w, v] = sum over i, r, q, k, j of G[n, i, f(r, q), h + y(r), w + x(q), k*J + j] * W[o, …]

    `gate[n, c, 0, 0, v]` scales the channels of A on the way.
    """
    op: Conv2d = plan.operator  # type: ignore[assignment]  # plans of this template are of convolutions
    layout = Layout.of(op, plan.parameters)
    rows, columns = layout.rows, layout.columns
    batch, *_, lanes = data.shape
    interleaved = steps_of(plan.parameters)
    depth, zero = layout.depth, tvm.tirx.const(0, data.dtype)
    shape = (batch, op.groups * layout.depths, layout.phases, rows.extent, columns.extent, depth)

    def regrouped(n: Expr, i: Expr, f: Expr, y: Expr, x: Expr, d: Expr) -> Expr:
        within = i % layout.depths * layout.parts + d // lanes
        block = i // layout.depths * layout.in_blocks + within
        row = y * rows.stride + f // columns.phases * rows.unit - rows.before
        column = x * columns.stride + f % columns.phases * columns.unit - columns.before
        value = data[n, block, row, column, d % lanes]
        if gate is not None:
            value *= gate[n, block, 0, 0, d % lanes]
        if not layout.guarded:
            return value
        is_inside = (within < layout.in_blocks, row >= 0, row < rows.size, column >= 0, column < columns.size)
        return te.if_then_else(te.all(*is_inside), value, zero)

    source = te.compute(shape, regrouped, name=REGROUPED)
    i = te.reduce_axis((0, layout.depths), name="i")
    r = te.reduce_axis((0, op.kernel[0]), name="r")
    q = te.reduce_axis((0, op.kernel[1]), name="q")
    k = te.reduce_axis((0, depth // interleaved), name="k")
    j = te.reduce_axis((0, interleaved), name="j")
    per_group = layout.blocks // op.groups

    def product(n: Expr, o: Expr, h: Expr, w: Expr, v: Expr) -> Expr:
        down, across = r * rows.dilation, q * columns.dilation
        phase = down % rows.stride // rows.unit * columns.phases + across % columns.stride // columns.unit
        part = i if op.groups == 1 else o // per_group * layout.depths + i
        taken = source[n, part, phase, h + down // rows.stride, w + across // columns.stride, k * interleaved + j]
        tap = weight[o, i, r, q, k, v, j]
        return te.sum(taken.astype(op.accumulate) * tap.astype(op.accumulate), axis=[i, r, q, k, j])

    out = (batch, layout.blocks, *op.result, layout.lanes)
    sums = te.compute(out, product, name="conv2d", attrs={PLAN: plan.to_json()})
    return te.compute(out, lambda *index: sums[index].astype(op.out), name="crop")
