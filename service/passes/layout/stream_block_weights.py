"""Products of a few rows of 16-bit floats with quantized weights on CUDA: codes as the tensor cores take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.schedules.cuda.gemm.blocks_compute import MOST_ROWS, Blocks, product
from relaxc.service.passes.common.block_weights import BlockWeights, block_weights, dequantize_blocks
from relaxc.service.passes.common.constants import Array, constant, numpy_dtype
from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, static_shape
from relaxc.service.passes.precision.dtypes import LOW, is_low, is_widening

__all__ = ["StreamBlockWeights", "takes"]

_FUSES_ELEMENTWISE = {"op_pattern": 4}
"""What TVM calls a contraction, behind which elementwise operators are fused."""


@tvm.transform.module_pass(opt_level=0, name="StreamBlockWeights")
class StreamBlockWeights:
    """`A @ dequantize_blocks(codes, scales, zeros)` computes from packed codes, by `cuda.matmul_blocks`.

    Where A is not in 16 bits, or its rows are too many or not known, the weights are dequantized here: a product of
    many rows is bound by the tensor cores, and not by the bytes of its weights.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with packed codes; the same object if it has none."""
        return dequantize_blocks(rewrite_calls(module, {"matmul": _streamed}))


def takes(rows: int, weights: BlockWeights) -> bool:
    """Return whether the template computes a product of so many rows, 0 where it is not known, from the codes."""
    return 0 < rows <= MOST_ROWS and _packed(weights) is not None


def _streamed(call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, weights = _low(call.args[0], scope), block_weights(_wide(call.args[1], scope), scope)
    shape = static_shape(data) if data is not None else None
    if data is None or weights is None or shape is None or int(np.prod(shape[:-1])) > MOST_ROWS:
        return None
    found = _packed(weights)
    if found is None:
        return None
    blocks, weights = found
    codes, scales, *zeros = blocks.pack(weights.codes, weights.scales, weights.own_zeros if blocks.zeros else None)
    parts = codes, _narrowed(scales, str(data.ty.dtype)), *zeros
    total = scope.emit_te(product(blocks), data, *map(constant, parts), name="blocks", attrs=_FUSES_ELEMENTWISE)
    dtype = str(call.ty.dtype)
    return total if dtype == "float32" else relax.op.astype(total, dtype)


def _low(expr: relax.Expr, scope: Scope) -> relax.Expr | None:
    """A in 16 bits, before it was widened where it was."""
    if is_low(expr):
        return expr
    value = scope.value(expr)
    return value.args[0] if is_widening(value) else None


def _wide(expr: relax.Expr, scope: Scope) -> relax.Expr:
    """The weights before they were rounded to 16 bits: codes and scales say more."""
    value = scope.value(expr)
    return value.args[0] if op_name(value) == "relax.astype" and str(value.ty.dtype) in LOW else expr


def _packed(weights: BlockWeights) -> tuple[Blocks, BlockWeights] | None:
    """How they lie, and the weights in blocks that a step of the kernel has whole; None where that cannot be."""
    for found in (weights, weights.in_blocks(32)):
        zeros = found.own_zeros is not None
        blocks = Blocks(found.columns, found.depth, found.bits, found.block, zeros)
        if not blocks.refusal():
            return blocks, found
    return None


def _narrowed(scales: Array, dtype: str) -> Array:
    """The scales in 16 bits where they are the same there: they are bytes to read beside the codes."""
    for name in dict.fromkeys((dtype, "float16")):
        low = scales.astype(numpy_dtype(name))
        if (low.astype(np.float32) == scales).all():
            return low
    return scales
