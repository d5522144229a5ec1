"""The product that `cpu.matmul_blocks` schedules, as a tensor expression, and the packing of its codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx

from relaxc.schedules.cpu.common.dot_product import steps_of
from relaxc.schedules.cpu.gemm import digits_compute
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Expr
from relaxc.schedules.operators import BlockMatmul
from relaxc.schedules.plan import PLAN, Plan

__all__ = ["computation", "pack"]

Array = np.ndarray[Any, Any]


def pack(plan: Plan, codes: Array, scales: Array, zeros: Array | None) -> tuple[Array, ...]:
    """Return `codes[N, K]`, and `scales` and `zeros[N, K / block]`, as panels of columns, zeros past N.

    Codes are in words `[N / t, K / codes in a word, t]`, the first in the lowest bits; scales `[N / t, K / block, t]`
    are times `1 << bits`, and zero points are as they are. For an instruction that multiplies bytes, words are those of
    `digits_compute` and scales as they are.
    """
    op: BlockMatmul = plan.operator  # type: ignore[assignment]
    in_bytes = steps_of(plan.parameters) > 1
    words = digits_compute.words_of(codes, op.bits) if in_bytes else _words_of(codes, op)
    factor = scales.astype(op.accumulate) * np.asarray(1 if in_bytes else 1 << op.bits, op.accumulate)
    parts = (words, factor) if zeros is None else (words, factor, zeros)
    width = plan.parameters["vectors"] * plan.parameters["block"]
    return tuple(_panels(part, width) for part in parts)


def _words_of(codes: Array, op: BlockMatmul) -> Array:
    """`codes[N, K]` as `[N, K / codes in a word]`, the first in the lowest bits."""
    word, many = np.dtype(op.operands[1]), op.codes_in_word
    wide = codes.reshape(op.n, op.k // many, many).astype(f"u{word}")
    shifts = (np.arange(many) * op.bits).astype(wide.dtype)
    words: Array = np.bitwise_or.reduce(wide << shifts, axis=2).view(word)
    return words


def _panels(array: Array, width: int) -> Array:
    """`[N, S]` as `[N / width, S, width]`."""
    columns, steps = array.shape
    filled = np.pad(array, ((0, -columns % width), (0, 0)))
    return np.ascontiguousarray(filled.reshape(-1, width, steps).transpose(0, 2, 1))


def computation(plan: Plan) -> Callable[..., te.Tensor]:
    """Return the product of A and the parts that `pack` makes: by an instruction for bytes as `digits_compute` says.

    Without one, a code c of b bits becomes a float without a conversion: put below the exponent of 1 it is
    `1 + c / 2^b`. So

        sum of x * (c - z) * s = s * 2^b * (sum of x * (1 + c / 2^b) - (1 + z / 2^b) * sum of x)

    a block, where the last sum is the same for all columns. With 8 bits the difference of the two loses up to 8 bits of
    the result, so that 1.5 is taken off each value, exactly: what then is left of the last sum is 0 for most models.
    """
    if steps_of(plan.parameters) > 1:
        return digits_compute.computation(plan)
    op: BlockMatmul = plan.operator  # type: ignore[assignment]
    dtype, word = op.accumulate, op.operands[1]
    many, steps = op.codes_in_word, op.block // op.codes_in_word
    mantissa = int(np.finfo(dtype).nmant)
    one = int(np.ones((), dtype).view(word))
    middle = 1.5 if op.bits == 8 else 0.0
    mask = (1 << mantissa) - (1 << mantissa - op.bits)

    def decoded(words: Expr, code: Expr) -> Expr:
        moved = tirx.shift_left(tirx.shift_right(words, code * op.bits), tirx.const(mantissa - op.bits, word))
        value = tirx.reinterpret(dtype, (moved & tirx.const(mask, word)) | tirx.const(one, word))
        return value - tirx.const(middle, dtype) if middle else value

    def matmul(data: te.Tensor, words: te.Tensor, scales: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        *leading, _ = data.shape
        rows = tir.product(leading)
        panels, blocks, tile = (int(extent) for extent in scales.shape)
        i = te.reduce_axis((0, op.block), name="i")
        w, c = te.reduce_axis((0, steps), name="w"), te.reduce_axis((tir.index_const(0), tir.size(many)), name="c")
        b = te.reduce_axis((0, blocks), name="b")

        def element(m: Expr, k: Expr) -> Expr:
            return data[(*tir.unflatten(m, leading), k)].astype(dtype)

        def product(m: Expr, n: Expr, block: Expr) -> Expr:
            value = decoded(words[n // tile, block * steps + w, n % tile], c.var.astype(word))
            return te.sum(element(m, block * op.block + w * many + c) * value, axis=[w, c])

        def taken(m: Expr, n: Expr) -> Expr:
            at = n // tile, b, n % tile
            zero = zeros[0][at].astype(dtype) if zeros else tirx.const(1 << op.bits - 1, dtype)
            offset = tirx.const(1 - middle, dtype) + zero * tirx.const(1 / (1 << op.bits), dtype)
            return te.sum(scales[at] * (partial[m, n, b] - offset * sums[m, b]), axis=b)

        sums = te.compute(
            (rows, blocks), lambda m, block: te.sum(element(m, block * op.block + i), axis=i), name="sums"
        )
        partial = te.compute((rows, panels * tile, blocks), product, name="partial")
        tiles = te.compute((rows, panels * tile), taken, name="matmul", attrs={PLAN: plan.to_json()})
        shape = (*leading, op.n)
        return te.compute(
            shape, lambda *index: tiles[tir.flatten(index[:-1], leading), index[-1]].astype(op.out), name="crop"
        )

    return matmul
