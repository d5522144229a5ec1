"""Matrix products with constant weights: the weights packed into panels at compile time."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from schedules.hardware import Cpu
from service.passes.common.rewrite import Scope, is_tensor_constant, rewrite_calls
from service.passes.kernels import blocked_compute as compute

__all__ = ["PackMatmul"]

Array = np.ndarray[Any, Any]

_FEW_ROWS = 4
"""Rows under which the product is bound by reading the weights, and the panels are chosen to spread over the cores."""

_PANELS_PER_CORE = 4


@tvm.transform.module_pass(opt_level=0, name="PackMatmul")
class PackMatmul:
    """`C = A @ B` with a constant float32 `B[K, N]` computes from panels `P[N/t, K, t]`, t whole vectors.

    A panel is read from start to end for each tile of rows, with no other stride than one; the tile's rows and t are
    chosen together, so that the accumulators fill the registers and as little as possible is computed past the ends.
    For a few rows each core reads its panels as one stream, at the speed of the memory. Symbolic rows stay as they
    are, as TVM cannot prove their tiles apart.
    """

    def __init__(self, cpu: Cpu) -> None:
        self.cpu = cpu

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """The module with packed products; the same object if it has none."""
        return rewrite_calls(module, {"matmul": partial(_packed, self.cpu)})


def _packed(cpu: Cpu, call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, weight = call.args
    weight = scope.value(weight)
    if not is_tensor_constant(weight) or weight.ty.ndim != 2 or data.ty.ndim < 2 or data.ty.shape is None:
        return None
    if {str(e.ty.dtype) for e in (data, weight, call)} != {"float32"}:
        return None
    array: Array = weight.value.numpy()
    rows = _product(list(data.ty.shape)[:-1])
    if not rows or not array.size:
        return None
    few = rows < _FEW_ROWS
    tile, vectors = (rows, _vectors_of_few(rows, array.shape[1], cpu)) if few else _tile(rows, array.shape[1], cpu)
    width = vectors * cpu.lanes(32)
    product = partial(compute.matmul, columns=array.shape[1], row_tile=tile, out_dtype="float32")
    return scope.emit_te(product, data, relax.const(_panels(array, width)), name="matmul", attrs={})


def _product(shape: Any) -> int | None:
    total = 1
    for dim in shape:
        if not hasattr(dim, "value"):
            return None
        total *= int(dim)
    return total


def _vectors_of_few(rows: int, columns: int, cpu: Cpu) -> int:
    """Vectors of a panel for a few rows: enough to hide the latency of a multiply-add, fewer where panels are few."""
    fitting = (cpu.vector_registers - 1) // (rows + 1)
    spread = columns // (cpu.lanes(32) * cpu.cores * _PANELS_PER_CORE)
    return max(1, min(4, fitting, spread))


def _tile(rows: int, columns: int, cpu: Cpu) -> tuple[int, int]:
    """Rows and vectors of the register tile with the best estimate of useful work in a cycle.

    A step of the reduction over a tile of r by v issues r*v multiply-adds, and r broadcasts and v loads beside them,
    which wait for nothing but registers: r*v + v + 1 of them.
    """
    lanes = cpu.lanes(32)
    best = (0.0, 1, 1)
    for vectors in (4, 3, 2, 1):
        for tile in range(min(rows, 14), 0, -1):
            if tile * vectors + vectors + 1 > cpu.vector_registers:
                continue
            useful = columns / _up(columns, vectors * lanes) * rows / _up(rows, tile)
            issued = max(tile * vectors / cpu.fma_per_cycle, (tile + vectors) / cpu.loads_per_cycle, cpu.fma_latency)
            score = useful * tile * vectors / (issued + 1)
            best = max(best, (score, tile, vectors))
    return best[1], best[2]


def _up(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple


def _panels(array: Array, width: int) -> Array:
    """`B[K, N]` → `P[N/width, K, width]`, zeros past N."""
    depth, columns = array.shape
    filled = np.pad(array, ((0, 0), (0, -columns % width)))
    return np.ascontiguousarray(filled.reshape(depth, -1, width).transpose(1, 0, 2))
