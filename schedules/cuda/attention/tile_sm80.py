"""The tile of attention on mma.sync: its parameters, what it takes of an SM, and which is the fastest by arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from relaxc.schedules.cuda.attention.form import Attention
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import tir
from relaxc.schedules.template import Choices, Parameters

__all__ = ["WarpTile", "choices", "default", "refusal"]

_RESERVED_BYTES = 1024
"""Shared memory of a CTA that is the system's."""
_OTHER_REGISTERS, _LOGIT_REGISTERS = 52, 16
"""Of a thread, beside its scores and sums: operands, addresses, the softmax; and what a mask takes."""
_MOST_REGISTERS = 255
_MOST_BY_DEFAULT = 248
"""By the estimate: with more, some of it spilled."""
_MAX_WARPS = 8
_KEPT_DEPTH = 64
"""Columns of the longest queries that stay in registers."""

# Fitted to 46 kernels timed on an H100, by what its row says of products, exponentials and copies. What a step takes of
# a unit's peak where other warps work beside it; what each warp adds to a step, and what it takes alone; a tile's ends.
_PRODUCTS, _POWERS, _SHRINK = 0.58, 0.4, 0.67
_WARP, _STEP = 100, 400
_TILE, _FIRST = 2240, 3700
_LOGIT = 0.47
"""How many scores a cycle where each has a mask, to those without."""


@dataclass(frozen=True)
class WarpTile:
    """`rows` queries, of which a warp has `warp`; `block` keys a step, `stages` of them in shared memory.

    `slices` of the keys have a warp each, which waits for no other.
    """

    rows: int
    warp: int
    block: int
    stages: int
    slices: int

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.rows // self.warp * self.slices

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.warps * 32

    def keeps_queries(self, attention: Attention) -> bool:
        """Return whether a warp has its queries in registers, and does not load them at every step."""
        return _depth(attention) <= _KEPT_DEPTH

    def registers(self, attention: Attention) -> int:
        """Return the registers of a thread."""
        depth = _depth(attention)
        held = self.block // 2 + depth // 2 + (depth // 4 if self.keeps_queries(attention) else 4)
        return self.warp // 16 * held + _OTHER_REGISTERS + (_LOGIT_REGISTERS if attention.logit.text else 0)

    def shared_bytes(self, attention: Attention) -> int:
        """Shared memory of a CTA: queries, keys and values, or the slices' sums in their place."""
        pitch = _depth(attention) * 2 + 16
        held = (self.rows + 2 * self.stages * self.block * self.slices) * pitch
        parts = self.slices * self.rows * (attention.head + 4) * 4 if self.slices > 1 else 0
        return 128 + max(held, parts)

    def per_sm(self, attention: Attention, gpu: Gpu) -> int:
        """Return the CTAs that an SM holds at a time."""
        registers = min(_MOST_REGISTERS, ceil(self.registers(attention) / 8) * 8)
        by_shared = gpu.shared_bytes_per_sm // (self.shared_bytes(attention) + _RESERVED_BYTES)
        return max(1, min(by_shared, gpu.registers_per_sm // (registers * self.threads), 4))

    def tiles(self, attention: Attention) -> Any:
        """Return the tiles of all heads: one a CTA."""
        return tir.product([tir.ceil_div(attention.queries, self.rows), attention.heads, attention.batch])

    def blocks(self, attention: Attention, m: int) -> int:
        """Return the blocks of keys that the queries of tile `m` see."""
        return attention.blocks(self.block, (m + 1) * self.rows)

    def cycles(self, attention: Attention, gpu: Gpu) -> float:
        """Return the cycles of an SM, roughly: what its CTAs ask of it together, or one step after the other."""
        depth, tiles, warps = _depth(attention), self.tiles(attention), self.rows // self.warp
        held = min(self.per_sm(attention, gpu), ceil(tiles / gpu.sms))
        products = 2 * self.rows * self.block * depth / _multiply_adds(attention, gpu)
        powers = self.rows * self.block / (gpu.powers_per_cycle * (_LOGIT if attention.logit.text else 1.0))
        shrink = self.rows * depth / 128
        loads = 2 * self.block * depth * 2 / gpu.copied_bytes_per_cycle
        together = _PRODUCTS * products + _POWERS * powers + _SHRINK * shrink + loads + _WARP * warps
        # A warp has a quarter of the SM at most; while it waits, another one goes on.
        alone = (products + powers + shrink) * max(1.0, 4 / warps) + _STEP
        rows, at_once = ceil(attention.queries / self.rows), gpu.sms * held
        blocks = [self.blocks(attention, m) for m in range(rows)]
        # The longest come first, and what is left goes to who ends first.
        rounds = max(1.0, tiles / at_once)
        steps = max(float(max(blocks)), rounds * sum(blocks) / rows)
        step = max(held * self.slices * together, alone)
        return _FIRST + float(rounds * held * _TILE + max(1.0, steps / self.slices) * step)


def _depth(attention: Attention) -> int:
    """The columns of a head in whole steps of the instruction."""
    return ceil(attention.head / 16) * 16


def refusal(tile: WarpTile, attention: Attention, gpu: Gpu) -> str:
    """Return why no CTA holds a tile of the space, or ''."""
    if tile.warp > tile.rows:
        return "a warp has more queries than the tile"
    if not 2 <= tile.warps <= _MAX_WARPS:
        return f"a CTA has 2 to {_MAX_WARPS} warps, not {tile.warps}"
    if tile.slices > 1 and tile.rows > tile.warp:
        return "a slice of the keys is one warp's"
    if attention.rounded and tile.slices > 1:
        return "weights are rounded where the sum of all powers is known"
    if tile.registers(attention) > _MOST_REGISTERS:
        return "a thread has not the registers for its scores and sums"
    if tile.shared_bytes(attention) > gpu.shared_bytes_of_code:
        return f"a CTA has at most {gpu.shared_bytes_of_code >> 10} KiB on the devices that run this code"
    return ""


def choices(attention: Attention, gpu: Gpu) -> Choices:
    """Return the space; a point that does not fit is refused."""
    # Without slices of keys, two warps take more than 16 queries
    most = max(17 if attention.rounded else 16, attention.queries)
    return {
        "rows": tuple(rows for rows in (16, 32, 64, 128) if rows < 2 * most),
        "warp": (16, 32) if most > 16 else (16,),
        "block": tuple(block for block in (16, 32, 48, 64, 96, 128) if block - 32 < max(32, attention.keys)),
        "stages": (1, 2),
        "slices": (1, 2, 4, 8),
    }


def default(attention: Attention, gpu: Gpu) -> Parameters:
    """Return the parameters that take the fewest cycles by arithmetic; of equals those with most stages."""
    points = (WarpTile(*point) for point in itertools.product(*choices(attention, gpu).values()))
    fitting = (tile for tile in points if not refusal(tile, attention, gpu))
    tiles = [tile for tile in fitting if tile.registers(attention) <= _MOST_BY_DEFAULT]
    cycles = {tile: tile.cycles(attention, gpu) for tile in tiles}
    return asdict(min(tiles, key=lambda tile: (cycles[tile], -tile.stages, tile.threads)))


def _multiply_adds(attention: Attention, gpu: Gpu) -> float:
    """The multiply-adds of an SM in a cycle, by mma."""
    return max(dot.rate for dot in gpu.dots if dot.operands[0] == attention.dtype and dot.intrinsic.startswith("mma"))
