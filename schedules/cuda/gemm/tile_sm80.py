"""The tile of a GEMM on mma.sync: its parameters, what it takes of an SM, and which is the fastest by arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from math import ceil

from relaxc.schedules.cuda.gemm.form import Gemm
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.template import Choices, Parameters

__all__ = ["WarpTile", "choices", "default", "refusal"]

GROUP_ROWS = 8
"""Rows of tiles that are computed together, so that they share operands in L2."""
_SHARED_BYTES = 99 << 10
"""Of a CTA: what 8.6, 8.9 and 12.0 have, which run the code for sm_80 too; 8.0 and 9.0 have more."""
_RESERVED_BYTES = 1024
"""Shared memory of a CTA that is the system's."""
_OTHER_REGISTERS = 88
"""Of a thread, beside its sums: operands of two steps, and addresses."""
_PRODUCTS = 6
"""How many products of bf16 parts make one of fp32."""
_SPLIT = 0.088
"""Cycles of an SM to take a number of fp32 apart, beside the products; measured on an H200."""
_MAX_WARPS = 8
_SHARES = (32, 4, 1)
"""Divides the guess where only the call knows the rows: the tile loses least over the quotients."""


@dataclass(frozen=True)
class WarpTile:
    """`rows` x `columns` of the result, `depth` of the sum a step, `stages` steps in a ring.

    `depth` counts numbers of 16 bits: of fp32 a step has half as many. `warp`: the columns of a warp. `slices` groups
    of warps share the sum: of few tiles, each has more warps then.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    slices: int
    warp: int

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return min(self.rows, 64) if self.rows == 128 or self.warp == 64 else 32

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.rows // self.warp_rows * (self.columns // self.warp) * self.slices

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.warps * 32

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums."""
        return self.warp_rows * self.warp // 32

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: the ring, or the sums of the other slices in its place."""
        ring = self.stages * (self.rows + self.columns) * self.depth * 2
        return 128 + max(ring, (self.slices - 1) * self.rows * self.columns * 4)

    def per_sm(self, gpu: Gpu, gemm: Gemm, more: int = 0) -> int:
        """Return the CTAs that an SM holds at a time, with `more` registers of a thread than a product takes."""
        parts = self.warp_rows * (3 if gemm.in_parts_of_fp32 else 2) // 4 if gemm.is_wide else 0
        registers = min(255, self.accumulators + _OTHER_REGISTERS + parts + more)
        by_shared = gpu.shared_bytes_per_sm // (self.shared_bytes + _RESERVED_BYTES)
        return max(1, min(by_shared, gpu.registers_per_sm // (registers * self.threads), 4))

    def tiles(self, gemm: Gemm) -> int:
        """Return the tiles of the result: one a CTA."""
        return ceil(gemm.m / self.rows) * ceil(gemm.n / self.columns) * gemm.batch

    def cycles(self, gemm: Gemm, gpu: Gpu) -> float:
        """Return the cycles of an SM, roughly: of each step the products or the loads, whichever take longer."""
        tiles = self.tiles(gemm)
        held = min(self.per_sm(gpu, gemm), ceil(tiles / gpu.sms))
        area, edge = self.rows * self.columns, self.rows + self.columns
        depth = self.depth * 2 // dtype_bytes(gemm.dtype)
        products = held * area * depth / _multiply_adds(gemm, gpu) * max(1, 4 / (held * self.warps))
        # A warp reads its operands of each 16 of the sum anew, 128 bytes a cycle for all.
        reads = self.warps // self.slices * (self.warp_rows + self.warp) * self.depth * 2 / 128
        loads = edge * self.depth * 2 / gpu.copied_bytes_per_cycle
        alone = gpu.tile_step_cycles + self.depth / 16 / self.slices * _mma_latency(gpu)
        # A ring of few steps does not hide the way from L2.
        arrival = gpu.first_load_cycles * 0.75 / (self.stages - 1)
        # What a warp waits for its operands, another of its quarter of the SM may hide.
        waits = gpu.mma_wait_cycles * self.depth / 16 / self.slices / max(1, held * self.warps / 4)
        if gemm.in_parts_of_fp32:
            # Each warp takes its operands apart anew.
            apart = held * self.warps / self.slices * (self.warp_rows + self.warp) * depth * _SPLIT
            products += apart * max(1, 4 / (held * self.warps))
        step = max(products, held * reads, held * loads, alone, arrival) + waits
        end = (
            held * area * ((3 if gemm.expensive else 1) + sum(map(gemm.is_whole, gemm.operands)) + self.slices - 1) / 16
        )
        waves = ceil(tiles / (gpu.sms * held))
        return waves * (gpu.first_load_cycles + ceil(gemm.k / depth) * step + end)


def refusal(tile: WarpTile, gemm: Gemm) -> str:
    """Return why a CTA does not hold a tile of the space, or ''."""
    if tile.warp > tile.columns:
        return "a warp has more columns than the tile"
    if not 2 <= tile.warps <= _MAX_WARPS:
        return f"a CTA has 2 to {_MAX_WARPS} warps, not {tile.warps}"
    if tile.slices > tile.depth // (32 if gemm.is_wide else 16):
        return "a step has fewer parts than there are slices"
    if tile.shared_bytes > _SHARED_BYTES:
        return f"a CTA has at most {_SHARED_BYTES >> 10} KiB on the devices that run this code"
    return ""


def choices(gemm: Gemm) -> Choices:
    """Return the space: every combination that `refusal` takes fits, and is right."""
    return {
        "rows": tuple(size for size in (32, 64, 128) if size == 32 or gemm.m > size // 2),
        "columns": tuple(size for size in (32, 64, 128, 256) if size == 32 or gemm.n > size // 2),
        "depth": (32, 64),
        "stages": (2, 3, 4),
        "slices": (1, 2, 4),
        "warp": (32, 64) if gemm.n > 32 else (32,),
    }


def default(gemm: Gemm, gpu: Gpu) -> Parameters:
    """Return the parameters that take the fewest cycles by arithmetic; of equals those with the least memory.

    Where the rows are known at the call, those that lose least over few and many rows.
    """
    points = itertools.product(*choices(gemm).values())
    tiles = [tile for tile in (WarpTile(*point) for point in points) if not refusal(tile, gemm) and _is_sensible(tile)]
    counts = [gemm.m] if gemm.rows is None else [max(1, gemm.m // share) for share in _SHARES]
    lost = dict.fromkeys(tiles, 0.0)
    for rows in counts:
        cycles = {tile: tile.cycles(replace(gemm, m=rows), gpu) for tile in tiles}
        least = min(cycles.values())
        lost = {tile: lost[tile] + cycles[tile] / least for tile in tiles}
    return asdict(min(tiles, key=lambda tile: (lost[tile], tile.shared_bytes, tile.threads)))


def _is_sensible(tile: WarpTile) -> bool:
    """Leaves out rings so short that a copy has to come within one step of 32."""
    return tile.stages > 2 or tile.depth > 32


def _multiply_adds(gemm: Gemm, gpu: Gpu) -> float:
    """The multiply-adds of an SM in a cycle, by mma."""
    dtype = ("tfloat32" if gemm.in_tf32 else "bfloat16") if gemm.is_wide else gemm.dtype
    rate = max(dot.rate for dot in gpu.dots if dot.operands[0] == dtype and dot.intrinsic.startswith("mma"))
    return rate / _PRODUCTS if gemm.in_parts_of_fp32 else rate


def _mma_latency(gpu: Gpu) -> int:
    return next(dot.latency for dot in gpu.dots if dot.intrinsic.startswith("mma"))
