"""Products with weights of 4 or 8 bits, scaled in blocks of the depth: their tensor expression, and how codes lie.

Sixteen columns and a step of the depth, 64 of 4 bits or 32 of 8, are 512 bytes: 16 of each lane of a warp, in the order
in which it feeds them to mma.sync, whose sums do not mind the order of the depth. A lane has columns `l / 4` and
`l / 4 + 8` of a tile, and of each 32 of the depth the eight from `l % 4 * 8` on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

__all__ = ["LANES", "MOST_ROWS", "TILE", "Blocks", "product"]

Array = np.ndarray[Any, Any]

TILE, LANES, _LANE_BYTES = 16, 32, 16
_HALF = TILE // 2

MOST_ROWS = 16
"""Rows of A up to which the weights' bytes bound a product: beyond, a product of dequantized weights is faster."""


@dataclass(frozen=True)
class Blocks:
    """Weights of `columns` by `depth`, of codes with `bits`, `block` of the depth sharing a scale.

    `zeros`: blocks have zero points of their own; else it is the middle of the codes.
    """

    columns: int
    depth: int
    bits: int
    block: int
    zeros: bool

    @property
    def step(self) -> int:
        """Return the depth of a step."""
        return _LANE_BYTES * 8 // self.bits // 2 * 4

    @property
    def tiles(self) -> int:
        """Return the tiles of columns; what lies beyond the last column has a scale of 0."""
        return -(-self.columns // TILE)

    @property
    def steps(self) -> int:
        """Return the steps of the depth."""
        return -(-self.depth // self.step)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the codes, the scales, and the zero points if there are any."""
        blocks = (self.tiles, -(-self.steps * self.step // self.block), _HALF, 2)
        return [(self.tiles, self.steps, LANES, _LANE_BYTES), blocks, *([blocks] if self.zeros else [])]

    def refusal(self) -> str:
        """Return why the kernel does not take them, or ''."""
        if self.bits not in (4, 8) or self.depth % 32 or self.block % 32:
            return "the depth or the blocks are not in multiples of 32"
        if self.block > self.step and self.block % self.step and self.block < self.depth:
            return "a step of the depth has parts of two blocks"
        return "" if self.columns % 2 == 0 else "its columns are odd"

    def pack(self, codes: Array, scales: Array, zeros: Array | None) -> tuple[Array, ...]:
        """Return `codes[N, K]`, and `scales` and `zeros[N, K / block]`, as the kernel reads them."""
        tiles, steps, lanes, size = self.shapes[0]
        width = self.steps * self.step
        filled = np.zeros((tiles * TILE, width), np.uint8)
        filled[: self.columns, : self.depth] = codes
        n, k = np.meshgrid(np.arange(tiles * TILE), np.arange(width), indexing="ij")
        packed = np.zeros((tiles, steps, lanes, size), np.uint8)
        shifts = (n % TILE // _HALF * 4 if self.bits == 4 else n * 0).astype(np.uint8)
        np.bitwise_or.at(packed, self._place(n, k), filled << shifts)
        parts = [scales] if zeros is None else [scales, zeros]
        return packed, *map(self._paired, parts)

    def _paired(self, array: Array) -> Array:
        """`[N, K / block]` as `[tile, block, column of the first half, half]`, zeros outside."""
        tiles, blocks, half, two = self.shapes[1]
        filled = np.zeros((tiles * TILE, blocks), array.dtype)
        filled[: self.columns, : array.shape[1]] = array
        return np.ascontiguousarray(filled.reshape(tiles, two, half, blocks).transpose(0, 3, 2, 1))

    def _place(self, n: Any, k: Any) -> tuple[Any, Any, Any, Any]:
        """The tile, the step, the lane and the byte of the code of column n and depth k.

        Of four codes of a row of the instruction the first two are its first operand, the others its third; those of
        the rows below, the second and the fourth. Two codes of 4 bits are 16 bits apart, and in the lower half of a
        byte if of the upper rows.
        """
        half, element = n % TILE // _HALF, k % 4
        quarter, lane = k % self.step // 32 * 2 + k % 8 // 4, n % _HALF * 4 + k % 32 // 8
        pairs, whole = quarter * 4 + element // 2 + element % 2 * 2, quarter * 8 + half * 4 + element
        return n // TILE, k // self.step, lane, pairs if self.bits == 4 else whole

    def weight(self, parts: Sequence[Any], n: Any, k: Any) -> Any:
        """Return the weight of column n and depth k in fp32, read from the packed parts."""
        code = parts[0][self._place(n, k)].astype("int32")
        if self.bits == 4:
            upper, lower = (tirx.const(number, "int32") for number in (15, 4))
            code = tirx.Select(n % TILE < _HALF, tirx.bitwise_and(code, upper), tirx.shift_right(code, lower))
        at = n // TILE, k // self.block, n % _HALF, n % TILE // _HALF
        zero = parts[2][at].astype("int32") if self.zeros else tirx.const(1 << self.bits - 1, "int32")
        return (code - zero).astype("float32") * parts[1][at].astype("float32")


def product(weights: Blocks) -> Callable[..., te.Tensor]:
    """Return `C[..., m, n] += A[..., m, k] * weight(n, k)` in fp32, of A and the packed parts."""

    def blocks(data: te.Tensor, *parts: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, weights.depth), name="k")
        return te.compute(
            (*data.shape[:-1], weights.columns),
            lambda *at: te.sum(data[(*at[:-1], k)].astype("float32") * weights.weight(parts, at[-1], k.var), axis=k),
            name="matmul",
        )

    return blocks
