"""The product of `cpu.matmul_blocks` by an instruction for bytes: A in digits, the codes as they are."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod
from typing import Any

import numpy as np
from tvm import te, tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Expr
from relaxc.schedules.operators import BlockMatmul
from relaxc.schedules.plan import PLAN, Plan

__all__ = ["BYTES", "DIGITS", "PARTIAL", "PREPARED", "TOTALS", "WORD", "computation", "words_of"]

dtypes = ("float32", "int32", "int8", "uint8")
"""What the algorithm is made of: the bits of floats, words of codes and sums of products, digits, and codes."""

_FLOAT, WORD, _DIGIT, _CODE = dtypes

BYTES = (_CODE, _DIGIT)
"""The operands of the instruction."""

_IN_WORD, _BYTE_BITS, _HALF_BITS = 4, 8, 4

DIGITS = 3
"""Signed bytes that a value of A becomes, of 23 bits with its sign: as many as of a float32 but one."""

PARTIAL = "partial"
TOTALS = ("largest", "total")
"""What is left of a block of A once its lanes are added up, or compared."""

PREPARED = ("largest_lanes", "largest", "factor", "fixed", "digits", "total_lanes", "total")
"""What is made of A before the weights are read, in this order."""

Array = np.ndarray[Any, Any]

_EXPONENT, _BIAS, _INFINITE = 23, 127, 255
"""Of a float32: the bits below the exponent, what is added to it, and that of infinity and NaN."""

_FIXED_BITS = 22
"""The largest of a block is below 2^22 as an integer: below half of what three signed bytes hold."""

_ROUNDS = 1.5 * 2**_EXPONENT
"""Added to a smaller float32, it leaves the nearest integer in the low bits."""


def words_of(codes: Array, bits: int) -> Array:
    """Return `codes[N, K]` as int32 words `[N, K / codes in a word]`, each step's code in a byte of its own.

    A word of 4 bits has the codes of steps 0 to 3 in the low halves of its bytes, and 4 to 7 in the high ones.
    """
    steps = codes.reshape(codes.shape[0], -1, 8 // bits, 4)
    byte = steps[:, :, 0] if bits == 8 else steps[:, :, 0] | steps[:, :, 1] << 4
    return np.ascontiguousarray(byte.astype(np.uint8)).view("<i4")[..., 0].astype(np.int32)


def computation(plan: Plan) -> Callable[..., te.Tensor]:
    """Return the product of A and the parts that `blocks_compute.pack` makes.

    A block of A becomes integers v of 23 bits by a power of two p, as its largest has it, and each of these three
    signed bytes, v = d0 + 2^8 d1 + 2^16 d2. So, with sums that are exact but for the last step of a block,

        sum of x * (c - z) * s = s / p * sum over j of 2^8j * (sum of dj * c - z * sum of dj)

    where an instruction adds four products of bytes to a sum. A block that is not finite gives NaN.
    """
    op: BlockMatmul = plan.operator  # type: ignore[assignment]
    many, steps = op.codes_in_word, op.block // op.codes_in_word
    lanes = gcd(op.block, plan.parameters["block"])

    def matmul(data: te.Tensor, words: te.Tensor, scales: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        *leading, _ = data.shape
        rows = prod(int(extent) for extent in leading)
        panels, blocks, tile = (int(extent) for extent in scales.shape)
        digits, total, factor = _prepared(data, leading, rows, op, lanes)
        w, b = te.reduce_axis((0, steps), name="w"), te.reduce_axis((0, blocks), name="b")
        h, j = (
            te.reduce_axis((tir.index_const(0), tir.size(extent)), name=name) for extent, name in ((2, "h"), (4, "j"))
        )
        halves = (h,) if many > 4 else ()

        def product(m: Expr, block: Expr, digit: Expr, n: Expr) -> Expr:
            at, bit = (
                (h.var * _IN_WORD + j.var, j.var * _BYTE_BITS + h.var * _HALF_BITS)
                if halves
                else (j.var, j.var * _BYTE_BITS)
            )
            word = words[n // tile, block * steps + w, n % tile]
            code = tirx.shift_right(word, bit.astype(WORD)) & tirx.const((1 << op.bits) - 1, WORD)
            return te.sum(digits[m, digit, block * op.block + w * many + at].astype(WORD) * code, axis=[w, *halves, j])

        def taken(m: Expr, n: Expr) -> Expr:
            at = n // tile, b, n % tile
            zero = zeros[0][at].astype(WORD) if zeros else tirx.const(1 << op.bits - 1, WORD)
            parts = [(partial[m, b, d, n] - zero * total[m, b, d]).astype(_FLOAT) for d in range(DIGITS)]
            whole = sum((part * tirx.const(256.0**d, _FLOAT) for d, part in enumerate(parts[1:], 1)), parts[0])
            return te.sum(scales[at] * (whole * factor[m, b]), axis=b)

        partial = te.compute((rows, blocks, DIGITS, panels * tile), product, name=PARTIAL)
        tiles = te.compute((rows, panels * tile), taken, name="matmul", attrs={PLAN: plan.to_json()})
        shape = (*leading, op.n)
        return te.compute(
            shape, lambda *index: tiles[tir.flatten(index[:-1], leading), index[-1]].astype(op.out), name="crop"
        )

    return matmul


def _prepared(
    data: te.Tensor, leading: list[Expr], rows: int, op: BlockMatmul, lanes: int
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """The digits `[m, d, k]` of A, their sum in each block `[m, b, d]`, and what 1 of a block stands for `[m, b]`."""
    blocks, parts = op.k // op.block, op.block // lanes
    i, lane = te.reduce_axis((0, parts), name="i"), te.reduce_axis((0, lanes), name="lane")
    i2, lane2 = te.reduce_axis((0, parts), name="i"), te.reduce_axis((0, lanes), name="lane")

    def bits(m: Expr, k: Expr) -> Expr:
        value = data[(*tir.unflatten(m, leading), k)].astype(_FLOAT)
        return tirx.reinterpret(WORD, value) & tirx.const(0x7FFFFFFF, WORD)

    def power(exponent: Expr) -> Expr:
        return tirx.reinterpret(_FLOAT, tirx.shift_left(exponent + _BIAS, tirx.const(_EXPONENT, WORD)))

    def up(m: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Twos whose product with any of the block is below 2^22, as two exponents: one would not do for 2^-126."""
        exponent = _BIAS - 1 + _FIXED_BITS - tirx.shift_right(largest[m, b], tirx.const(_EXPONENT, WORD))
        half = tirx.shift_right(exponent, tirx.const(1, WORD))
        return half, exponent - half

    def down(m: Expr, b: Expr) -> Expr:
        half, rest = up(m, b)
        is_finite = largest[m, b] < tirx.const(_INFINITE << _EXPONENT, WORD)
        return tirx.if_then_else(is_finite, power(-half) * power(-rest), tirx.const(float("nan"), _FLOAT))

    def nearest(m: Expr, k: Expr) -> Expr:
        half, rest = up(m, k // op.block)
        value = data[(*tir.unflatten(m, leading), k)].astype(_FLOAT)
        rounded = value * power(half) * power(rest) + tirx.const(_ROUNDS, _FLOAT)
        return tirx.reinterpret(WORD, rounded) - int(np.float32(_ROUNDS).view(np.int32))

    def digit(m: Expr, d: Expr, k: Expr) -> Expr:
        """The digits below have been at most 127, so that half of a step is added before they are shifted out."""
        bits = (d * _BYTE_BITS).astype(WORD)
        below = tirx.shift_right(tirx.const(0x8080, WORD), 16 - bits)
        return tirx.shift_right(fixed[m, k] + below, bits).astype(_DIGIT)

    shape = (rows, blocks)
    largest_lanes = te.compute(
        (*shape, lanes),
        lambda m, b, at: te.max(bits(m, b * op.block + i * lanes + at), axis=i),
        name="largest_lanes",
    )
    largest = te.compute(shape, lambda m, b: te.max(largest_lanes[m, b, lane], axis=lane), name="largest")
    factor = te.compute(shape, down, name="factor")
    fixed = te.compute((rows, op.k), nearest, name="fixed")
    digits = te.compute((rows, tir.size(DIGITS), op.k), digit, name="digits")
    total_lanes = te.compute(
        (*shape, DIGITS, lanes),
        lambda m, b, d, at: te.sum(digits[m, d, b * op.block + i2 * lanes + at].astype(WORD), axis=i2),
        name="total_lanes",
    )
    total = te.compute((*shape, DIGITS), lambda m, b, d: te.sum(total_lanes[m, b, d, lane2], axis=lane2), name="total")
    return digits, total, factor
