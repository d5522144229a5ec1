"""Weights that stay quantized in a module: codes of 4 or 8 bits, a scale and a zero point for blocks of the depth.

One form for all that models come with (`recognize_block_weights`): the right operand of a `matmul` is

    call_tir(dequantize_blocks, (codes[N, K] uint8, scales[N, K / B] float32, zeros[N, K / B] uint8))   -> W[K, N]
    W[k, n] = (codes[n, k] - zeros[n, k // B]) * scales[n, k // B]

of constants, a code a byte, whatever its bits; `zeros` may be `[1, 1]`, one for all. The PrimFunc is its own reference:
a target without a template for it computes W. What packs the codes for a template reads them with `block_weights`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tvm import IRModule, relax, te

from relaxc.service.passes.common.constants import Array, array_of, constant, is_tensor_constant
from relaxc.service.passes.common.rewrite import Scope, rewrite_calls

__all__ = ["BlockWeights", "block_weights", "dequantize_blocks", "emit_block_weights"]

_NAME, _MARK = "dequantize_blocks", "relaxc.block_weights"


@dataclass(frozen=True)
class BlockWeights:
    """`W[k, n] = (codes[n, k] - zeros[n, k // block]) * scales[n, k // block]`; `zeros` may be `[1, 1]`."""

    codes: Array
    scales: Array
    zeros: Array

    @property
    def depth(self) -> int:
        """K."""
        return int(self.codes.shape[1])

    @property
    def columns(self) -> int:
        """N."""
        return int(self.codes.shape[0])

    @property
    def block(self) -> int:
        """Steps of the depth that share a scale."""
        return self.depth // int(self.scales.shape[1])

    @cached_property
    def bits(self) -> int:
        """Bits of a code: 4 where all fit."""
        return 4 if self.codes.max(initial=0) < 16 and self.zeros.max(initial=0) < 16 else 8

    @property
    def own_zeros(self) -> Array | None:
        """The zero points `[N, K / block]`; None where all are the middle of the codes."""
        if (self.zeros == 1 << self.bits - 1).all():
            return None
        return np.broadcast_to(self.zeros, self.scales.shape)

    def in_blocks(self, most: int) -> BlockWeights:
        """Return the same weights in blocks of at most `most`, a divisor of the block, each with its scale."""
        size = max(divisor for divisor in range(1, most + 1) if self.block % divisor == 0)
        times = self.block // size
        zeros = self.zeros if self.zeros.size == 1 else self.zeros.repeat(times, axis=1)
        return BlockWeights(self.codes, self.scales.repeat(times, axis=1), zeros)

    def dequantized(self) -> Array:
        """Return `W[K, N]` in float32."""
        columns, depth = self.codes.shape
        shape = columns, self.scales.shape[1], self.block
        steps = self.codes.reshape(shape).astype(np.float32) - self.zeros.astype(np.float32)[:, :, None]
        steps *= self.scales[:, :, None]
        return np.ascontiguousarray(steps.reshape(columns, depth).T)


def emit_block_weights(weights: BlockWeights, scope: Scope) -> relax.Var:
    """Bind the weights as a `matmul` reads them."""
    block = weights.block

    def dequantize(codes: te.Tensor, scales: te.Tensor, zeros: te.Tensor) -> te.Tensor:
        one_zero = all(int(size) == 1 for size in zeros.shape)

        def element(k: Any, n: Any) -> Any:
            zero = zeros[0, 0] if one_zero else zeros[n, k // block]
            steps = codes[n, k].astype("int32") - zero.astype("int32")
            return steps.astype("float32") * scales[n, k // block]

        return te.compute((weights.depth, weights.columns), element, name=_NAME)

    parts = (constant(part) for part in (weights.codes, weights.scales, weights.zeros))
    return scope.emit_te(dequantize, *parts, name=_NAME, attrs={_MARK: True})


def block_weights(expr: relax.Expr, scope: Scope) -> BlockWeights | None:
    """Return the weights that `expr` stands for, if `emit_block_weights` bound it."""
    call = scope.call(expr, "relax.call_tir")
    if call is None or not scope.has_attribute(call, _MARK):
        return None
    parts = call.args[1].fields
    if len(parts) != 3 or not all(is_tensor_constant(part) for part in parts):
        return None
    return BlockWeights(*(array_of(part) for part in parts))


def dequantize_blocks(module: IRModule) -> IRModule:
    """Return the module with float32 constants for the weights that still are codes."""
    return rewrite_calls(module, {"call_tir": _dequantized})


def _dequantized(call: relax.Call, scope: Scope) -> relax.Expr | None:
    weights = block_weights(call, scope)
    return None if weights is None else constant(weights.dequantized())
