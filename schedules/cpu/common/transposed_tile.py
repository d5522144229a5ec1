"""A square tile of a matrix transposed in vector registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from relaxc.schedules.ir.statements import buffer, ramp, sequence, store
from relaxc.schedules.ir.types import Buffer, Expr, Stmt

__all__ = ["is_square_of_two", "transposed"]


def is_square_of_two(lanes: int) -> bool:
    """Return whether `transposed` takes vectors of `lanes` elements."""
    return lanes > 1 and lanes & (lanes - 1) == 0


def transposed(
    lanes: int, fill: Callable[[Buffer], Stmt], write: Callable[[int, Expr], Stmt], *, dtype: str
) -> tuple[Stmt, list[Buffer]]:
    """Transpose a tile of `lanes` vectors, `x[i, j] → write(j, vector of x[:, j])`; return also its buffers.

    `fill(tile)` is a statement that writes row i to `tile[i * lanes : (i + 1) * lanes]`.

    Blocks of b by b off the diagonal change places, for b = lanes / 2, …, 2, 1: a shuffle of two vectors for each
    vector and step (Eklundh, 'A fast computer method for matrix transposing', 1972).
    """
    steps = [1 << k for k in reversed(range(lanes.bit_length() - 1))]
    tiles = [buffer(f"tile{step}", lanes * lanes, dtype=dtype, scope="local") for step in range(len(steps))]
    statements = [fill(tiles[0])]
    for index, width in enumerate(steps):
        for row in range(lanes):
            vector = _exchanged(tiles[index], row, width, lanes)
            last = index + 1 == len(steps)
            statements.append(write(row, vector) if last else store(tiles[index + 1], vector, ramp(row * lanes, lanes)))
    return sequence(*statements), tiles


def _exchanged(tile: Buffer, row: int, width: int, lanes: int) -> Expr:
    """Row `row` after the blocks of `width` have changed places with those of its partner, `width` rows away."""
    partner = row ^ width
    upper, lower = min(row, partner), max(row, partner)
    vectors = [_row(tile, each, lanes) for each in (upper, lower)]
    return tirx.Shuffle(vectors, _order(row == upper, width, lanes))


def _row(tile: Buffer, row: int, lanes: int) -> Expr:
    return tirx.BufferLoad(tile, [ramp(row * lanes, lanes)])


def _order(upper: bool, width: int, lanes: int) -> Sequence[int]:
    """Which of the elements of both vectors, one after the other, make the upper or the lower one."""
    if upper:
        return [j if not j & width else lanes + j - width for j in range(lanes)]
    return [j + width if not j & width else lanes + j for j in range(lanes)]
