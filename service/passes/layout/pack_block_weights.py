"""Products of a few rows with quantized weights: codes packed into panels at compile time, as the plan says."""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import BlockMatmul
from relaxc.schedules.plan import Planner
from relaxc.service.passes.common.block_weights import BlockWeights, block_weights, dequantize_blocks
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.common.readers import pattern_of
from relaxc.service.passes.common.rewrite import Scope, rewrite_calls, rows_of

__all__ = ["PackBlockWeights", "takes"]

_MOST_BLOCK = 256
"""Steps of the depth that are summed before they are scaled: longer sums lose digits, and scales are few by then."""


@tvm.transform.module_pass(opt_level=0, name="PackBlockWeights")
class PackBlockWeights:
    """`A @ dequantize_blocks(codes, scales, zeros)` computes from packed codes, by the template for them.

    Where the rows of A are too many for it by now, the weights are dequantized here, for the packed product of floats.
    """

    def __init__(self, cpu: Cpu, planner: Planner | None = None) -> None:
        self.cpu = cpu
        self.planner = planner or planning.Defaults(cpu)

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with packed codes; the same object if it has none."""
        return dequantize_blocks(rewrite_calls(module, {"matmul": partial(_packed, self.cpu, self.planner)}))


def takes(cpu: Cpu, rows: int, weights: BlockWeights) -> bool:
    """Return whether the template computes a product of so many rows, 0 where it is not known, from the codes."""
    return planning.takes_blocks(_operator(rows, weights.in_blocks(_MOST_BLOCK)), cpu)


def _operator(rows: int, weights: BlockWeights) -> BlockMatmul:
    return BlockMatmul(
        m=rows,
        n=weights.columns,
        k=weights.depth,
        block=weights.block,
        bits=weights.bits,
        zeros=weights.own_zeros is not None,
    )


def _packed(cpu: Cpu, planner: Planner, call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, right = call.args
    weights, rows = block_weights(right, scope), rows_of(data)
    if weights is None or rows is None:
        return None
    if not takes(cpu, rows, weights):
        return None
    weights = weights.in_blocks(_MOST_BLOCK)
    plan = planner.plan(_operator(rows, weights))
    parts = planning.pack_blocks(plan, weights.codes, weights.scales, weights.own_zeros)
    return scope.emit_te(
        planning.computation(plan), data, *map(constant, parts), name="block_matmul", attrs=pattern_of(rows)
    )
