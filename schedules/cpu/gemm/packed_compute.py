"""The product that `cpu.matmul_packed` schedules, as a tensor expression, and the packing of its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te

from relaxc.schedules.cpu.common.dot_product import steps_of
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Expr
from relaxc.schedules.plan import PLAN, Plan

__all__ = ["computation", "pack"]

Array = np.ndarray[Any, Any]


def pack(array: Array, width: int, dot: int = 1) -> Array:
    """Return `B[K, N]` as `P[N/width, K, width]`, zeros past N; as `P[N/width, K/dot, width, dot]` for instructions.

    It is a view where nothing is filled up.
    """
    depth, columns = array.shape
    filled = np.pad(array, ((0, 0), (0, -columns % width))) if columns % width else array
    if dot > 1:
        return filled.reshape(depth // dot, dot, -1, width).transpose(2, 0, 3, 1)
    return filled.reshape(depth, -1, width).transpose(1, 0, 2)


def computation(plan: Plan) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """Return `C[..., m, n] += A[..., m, k] * B[n // t, k, n % t]` of A and the packed `B[N/t, K, t]`.

    All leading axes are one axis of rows in the accumulator, which is over the plan's padded rows: those past the last
    read the last one again and are cropped. A plan for any number of rows pads none. Where an instruction takes several
    steps of k, the sum is over `k` of these and `j` in them.
    """
    op, padded = plan.operator, plan.parameters.get("padded")
    dot = steps_of(plan.parameters)
    columns, dtype = op.n, op.accumulate  # type: ignore[union-attr]  # a plan of this template is of a Matmul

    def matmul(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        *leading, _ = data.shape
        panels, steps, tile, *interleaved = (int(extent) for extent in weight.shape)
        rows = tir.product(leading)
        k = te.reduce_axis((0, steps), name="k")
        within = [te.reduce_axis((0, dot), name="j") for _ in interleaved]

        def product(m: Expr, n: Expr) -> Expr:
            row = tir.unflatten(m if padded in (rows, None) else te.min(m, rows - 1), leading)
            at = k * dot + within[0] if within else k
            taken = weight[(n // tile, k, n % tile, *within)]
            return te.sum(data[(*row, at)].astype(dtype) * taken.astype(dtype), axis=[k, *within])

        tiles = te.compute((padded or rows, panels * tile), product, name="matmul", attrs={PLAN: plan.to_json()})
        shape = (*leading, columns)
        return te.compute(
            shape, lambda *index: tiles[tir.flatten(index[:-1], leading), index[-1]].astype(op.out), name="crop"
        )

    return matmul
