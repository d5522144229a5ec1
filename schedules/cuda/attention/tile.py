"""The tile of attention on wgmma: its parameters, what it takes of an SM, and in which order tiles are computed."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil

from relaxc.schedules.cuda.attention.form import Attention
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.template import Choices, Parameters

__all__ = ["MOST_ROUNDED", "Tile", "choices", "default", "order"]

STAGES = 2
MOST_ROUNDED = 128
"""Keys whose weights may be rounded: of one step, which every size of heads leaves the registers for."""
_SECTION = 16
"""Heads whose keys and values stay in L2 while their tiles are computed."""

_MOST_ORDERED = 8192

# Cycles, fitted to 42 kernels timed on an H100.
_PRODUCTS = 1.3
"""The time of a product to what the tensor cores' peak gives it."""
_WITH_LOGIT = 0.47
"""How many scores a cycle where each has a mask, to those without."""
_SHRINK, _REDUCE = 0.8, 30
"""Scaling the sums, to what the units' peak gives it; and the maximum over a row's threads."""
_STEP, _TURN = 460, 30
"""A step's latency beside its work, and what each other warpgroup adds to it."""
_TILE, _TILE_ROWS, _TILE_OF_MANY = 600, 1310, 1750
"""The two ends of a tile: alone, what a warpgroup adds, and what is left of them where CTAs hide each other's."""
_EQUAL, _LONG = 1.02, 1024
"""What the model cannot tell apart, and from how many keys on that is left to what they cost to read."""
_LEAST_BLOCK = 64
"""Keys of a step by default, at least, if there are so many: none of fewer was timed."""


@dataclass(frozen=True)
class Tile:
    """`consumers` warpgroups of 64 queries, `block` keys a step, `per_sm` CTAs on an SM."""

    consumers: int
    block: int
    per_sm: int

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return self.consumers * 64

    @property
    def moves_registers(self) -> bool:
        """Whether the producer gives registers to the consumers; it is a whole warpgroup then."""
        return self.consumers > 1

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.consumers * 128 + (128 if self.moves_registers else 32)

    def registers(self, head: int) -> int:
        """Return the registers of a thread for scores, weights and sums."""
        return self.block // 2 + self.block // 4 + head // 2

    def stages(self, attention: Attention) -> int:
        """Return the blocks of keys, and of values, that are in shared memory at a time."""
        return STAGES if attention.keys > self.block or self.per_sm == 1 else 1

    def shared_bytes(self, attention: Attention) -> int:
        """Shared memory of a CTA: the queries, the rings, barriers, and room to align them."""
        stages, row = self.stages(attention), ceil(attention.head / 64) * 128
        return 1024 + (self.rows + 2 * stages * self.block) * row + 16 + 4 * stages * 8

    def fits(self, attention: Attention, gpu: Gpu) -> bool:
        """Return whether an SM holds it without spilling registers.

        Warpgroups that move registers take them all: a second CTA's would wait for them forever.
        """
        if self.moves_registers and self.per_sm > 1:
            return False
        if attention.rounded and attention.keys > self.block:  # the sum of all powers comes first
            return False
        most = {1: (255, 168, 128)[self.per_sm - 1], 2: 240, 3: 160}[self.consumers]
        used = self.registers(attention.head) + (48 if attention.logit.text else 32)
        space = gpu.shared_bytes_per_sm // self.per_sm - 1024
        return used <= most and self.shared_bytes(attention) <= min(space, gpu.shared_bytes_per_block)

    def tiles(self, attention: Attention) -> int:
        """Return the tiles of all heads."""
        return ceil(attention.queries / self.rows) * attention.heads * attention.batch

    def grid(self, attention: Attention, gpu: Gpu) -> int:
        """Return the CTAs: as many as the device holds."""
        return min(self.tiles(attention), gpu.sms * self.per_sm)

    def blocks(self, attention: Attention, m: int) -> int:
        """Return the blocks of keys that the queries of tile `m` see."""
        return attention.blocks(self.block, (m + 1) * self.rows)

    def cycles(self, attention: Attention, gpu: Gpu) -> float:
        """Return the cycles of an SM: what its tiles ask of it together, or the steps of one tile after the other."""
        head, tiles = ceil(attention.head / 16) * 16, self.tiles(attention)
        products = _PRODUCTS * 64 * self.block * head / 1024
        powers = 64 * self.block / (gpu.powers_per_cycle * (_WITH_LOGIT if attention.logit.text else 1.0))
        powers += _SHRINK * 64 * head / 128 + _REDUCE
        loads = self.block * head * 4 / gpu.l2_bytes_per_cycle / self.consumers
        together = min(self.per_sm, ceil(tiles / gpu.sms))
        # Of several warpgroups one multiplies while another takes exponentials: the busiest unit, and a little.
        busiest = (products**7 + powers**7 + loads**7) ** (1 / 7) if self.consumers * together > 1 else 0.0
        step = max(self.consumers * busiest, products + powers + _STEP + _TURN * (self.consumers - 1))
        rows = ceil(attention.queries / self.rows)
        ctas = gpu.sms * self.per_sm
        if attention.logit.causal is not None and tiles > ctas:  # `order` evens them out
            rounds, steps = tiles / ctas, sum(self.blocks(attention, m) for m in range(rows)) / rows
        else:
            rounds, steps = float(ceil(tiles / ctas)), float(self.blocks(attention, rows - 1))
        alone = _TILE + _TILE_ROWS * self.consumers + steps * step
        return rounds * max(together * (self.consumers * busiest * steps + _TILE_OF_MANY), alone)


def choices(attention: Attention, gpu: Gpu) -> Choices:
    """Return the space; a point that does not fit is refused."""
    return {
        "consumers": tuple(each for each in (1, 2, 3) if each == 1 or attention.queries > (each - 1) * 64),
        "block": tuple(
            each for each in (32, 48, 64, 80, 96, 128, 160, 176, 192) if each - 32 < max(32, attention.keys)
        ),
        "per_sm": (1, 2, 3),
    }


def default(attention: Attention, gpu: Gpu) -> Parameters:
    """Return the parameters that take the fewest cycles by arithmetic."""
    space = choices(attention, gpu)
    tiles = [
        Tile(consumers, block, per_sm)
        for consumers in space["consumers"]
        for block in space["block"]
        if block >= min(_LEAST_BLOCK, max(space["block"]))
        for per_sm in space["per_sm"]
        if consumers == 1 or per_sm == 1
    ]
    cycles = {tile: tile.cycles(attention, gpu) for tile in tiles if tile.fits(attention, gpu)}
    equal = _EQUAL * min(cycles.values())
    # Long keys are streamed from L2 once a tile: of tiles that take the same, that of most queries.
    rows = 1 if attention.keys >= _LONG else 0
    best = min(
        cycles, key=lambda tile: (cycles[tile] > equal, -tile.rows * rows, cycles[tile], -tile.per_sm, tile.block)
    )
    return asdict(best)


def order(tile: Tile, attention: Attention, gpu: Gpu) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the tiles of each CTA one after the other, and where each begins: what is left goes to who ends first.

    Tiles are numbered from the one with the most keys. None where all take the same, or they are too many.
    """
    heads, rows = attention.heads * attention.batch, ceil(attention.queries / tile.rows)
    ctas = tile.grid(attention, gpu)
    if attention.logit.causal is None or rows * heads > _MOST_ORDERED or rows * heads <= ctas:
        return None
    ready = [(0.0, cta) for cta in range(ctas)]
    lists: list[list[int]] = [[] for _ in range(ctas)]
    for first in range(0, heads, _SECTION):
        for rank in range(rows):
            for head in range(first, min(first + _SECTION, heads)):
                at, cta = heapq.heappop(ready)
                lists[cta].append(rank * heads + head)
                heapq.heappush(ready, (at + tile.blocks(attention, rows - 1 - rank) + 1.0, cta))
    starts = [0]
    for each in lists:
        starts.append(starts[-1] + len(each))
    return [number for each in lists for number in each], starts
