"""The tile of a GEMM on wgmma: its parameters, what it takes of an SM, and which one is the fastest by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from relaxc.schedules.cuda.gemm.form import Gemm
from relaxc.schedules.hardware import GPUS, Gpu
from relaxc.schedules.template import Choices, Parameters

__all__ = [
    "COOPERATIVE",
    "COPIED_ROWS",
    "MANY_ROWS",
    "PING_PONG",
    "Tile",
    "by_rows",
    "choices",
    "default",
    "many",
    "refusal",
]

COOPERATIVE, PING_PONG = 1, 0
"""Values of the parameter `splits` of one CTA a tile; above 1 it is the CTAs of a cluster that share its sum."""

COPIED_ROWS = 32
"""Rows of A that the copy engine brings at once: 32 that lie behind the last row cost it nothing.

With whole tiles 197x2304x768 took 5.1 us on an H100, so 4.7. Whole tiles of B lose nothing;
boxes of 16 rows lost a fifth.
"""

_MAX_STAGES = 8
_NAMES = ("rows", "columns", "atoms", "splits", "cluster", "group", "ahead", "share")
_RESERVED_BYTES = 1024
"""Shared memory of a CTA that is the system's."""
_HALF_BYTES = GPUS["sm_90"].shared_bytes_per_sm // 2 - _RESERVED_BYTES
"""Shared memory of each of two CTAs of an SM: this text is for no other architecture."""
_PARTIAL = 1
"""Atoms of 8-bit floats, 128 products each, that the tensor cores may add: more of them lose digits."""
_ADDERS = 128
"""Of fp32, in an SM."""
_CLEARLY = 0.9
"""Of the others' cycles: what is rare and two CTAs an SM lost where the arithmetic had them a little faster."""


@dataclass(frozen=True)
class Tile:
    """`rows` x `columns` of the result, `atoms` x 128 bytes of the operands' rows a step; B shared by `cluster` CTAs.

    `ahead`: the operands of the epilogue come into L2 while the tile before is computed. `share`: the CTAs that an SM
    shall hold, so that one loads or stores while another multiplies, and the next kernel's come in early. `partial`:
    atoms after which the tensor cores' sums are added to others in registers, 0 for never.
    """

    rows: int
    columns: int
    atoms: int
    splits: int
    cluster: int
    group: int
    ahead: int = 0
    share: int = 1
    partial: int = 0

    @staticmethod
    def of(parameters: Parameters) -> Tile:
        """Return the tile with these parameters."""
        return Tile(**{name: parameters[name] for name in _NAMES}, partial=parameters.get("partial", 0))

    def parameters(self) -> Parameters:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in _NAMES} | ({"partial": self.partial} if self.partial else {})

    @property
    def ping_pong(self) -> bool:
        """Each of two warpgroups has a tile of its own, if it fits its registers: one stores, the other multiplies."""
        return self.splits == PING_PONG and self.rows * self.columns <= 128 * 128

    @property
    def parts(self) -> int:
        """How many CTAs share the sum of a tile."""
        return max(1, self.splits)

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return 2 if self.ping_pong else self.rows // 64

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums."""
        rows = self.rows // 64 if self.ping_pong else 1
        return rows * self.columns // 2 * (2 if self.partial else 1)

    @property
    def moves_registers(self) -> bool:
        """Whether the producer gives registers to the consumers; it is a whole warpgroup then."""
        return self.consumers > 1 and (self.accumulators >= 96 or (self.ping_pong and self.accumulators > 32))

    @property
    def buffers(self) -> int:
        """Pieces of 64 columns of the result that wait in shared memory to be stored, of each warpgroup that stores.

        Two, so that one fills while another is stored; one of large tiles, whose ring needs the room more.
        """
        return 1 if self.rows > 128 and self.columns > 128 else 2

    @property
    def per_sm(self) -> int:
        """CTAs that an SM holds: one where two would have too few registers, or less than two steps of a ring."""
        if self.share == 1 or self.moves_registers or self.accumulators > 64 or self.parts > 1:
            return 1
        return self.share if self.fixed_bytes(True) + 2 * (self.rows + self.columns) * 128 <= _HALF_BYTES else 1

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.consumers * 128 + (128 if self.moves_registers else 32)

    def by_copy_engine(self, low_result: bool) -> bool:
        """Return whether the result goes through shared memory: 16-bit results, and sums that are not split."""
        return low_result and self.parts == 1

    def fixed_bytes(self, low_result: bool) -> int:
        """Shared memory beside the ring."""
        rows = self.rows if self.ping_pong else self.rows // self.consumers
        out = self.consumers * self.buffers * rows * 128 if self.by_copy_engine(low_result) else 0
        partial = self.rows * self.columns * 4 if self.parts > 1 else 0
        return 1024 + out + partial + _MAX_STAGES * 16 + 64

    def ring(self, gpu: Gpu, low_result: bool) -> tuple[int, int]:
        """Return the steps of the ring, and the atoms of 64 in one: two where two such steps fit, else one.

        A consumer lets go of a step when it has the next, so there must be two.
        """
        whole = gpu.shared_bytes_per_block if self.per_sm == 1 else _HALF_BYTES
        space = whole - self.fixed_bytes(low_result)
        atom = (self.rows + self.columns) * 128
        atoms = self.atoms if space // (atom * self.atoms) >= 2 else 1
        return min(_MAX_STAGES, space // (atom * atoms)), atoms

    def shared_bytes(self, gpu: Gpu, low_result: bool) -> int:
        """Shared memory of a CTA."""
        stages, atoms = self.ring(gpu, low_result)
        return self.fixed_bytes(low_result) + stages * atoms * (self.rows + self.columns) * 128

    def tiles(self, gemm: Gemm) -> int:
        """Return the tiles of the result, those above each other in a cluster counted once."""
        return ceil(gemm.row_tiles(self.rows) / self.cluster) * ceil(gemm.n / self.columns) * gemm.batch

    def grid(self, gemm: Gemm, gpu: Gpu) -> int:
        """Return the CTAs: as many as the device holds, or one a tile where clusters share a sum."""
        size = self.cluster * self.parts
        tiles = self.tiles(gemm)
        return (tiles if self.parts > 1 else min(tiles, gpu.sms * self.per_sm // size)) * size

    def cycles(self, gemm: Gemm, gpu: Gpu) -> float:
        """Return the cycles of an SM, roughly: its tiles' products or loads, whichever is more, and the ends."""
        loads = (self.rows + self.columns / self.cluster) * 128 / gpu.l2_bytes_per_cycle
        main, end = self._main(gemm, gpu, loads), self._end(gemm)
        waves = ceil(self.tiles(gemm) / (gpu.clusters(self.cluster * self.parts) * self.per_sm))
        if self.parts > 1:  # A cluster that shares a sum has one tile: the next wave loads and exchanges anew.
            exchange = gpu.exchange_cycles * self.rows * self.columns / (64 * 64)
            return waves * (main + end + gpu.first_load_cycles + exchange)
        first = gpu.first_load_cycles + (self.atoms - 1) * loads
        if self.per_sm > 1:  # One CTA is at its end while the other multiplies; both load by the same way.
            return first + waves * max(2 * main, main + end)
        if self.ping_pong:  # One of two warpgroups multiplies at a time, and each ends its own tiles.
            turns = ceil(waves / 2) * (main + end) + (0 if waves % 2 else main)
            return first + max(waves * main + end, turns)
        return first + waves * (main + end)

    def _main(self, gemm: Gemm, gpu: Gpu, loads: float) -> float:
        """The cycles of a tile's sum. Three warpgroups were as slow as if each met the barriers of a step alone."""
        steps = ceil(ceil(gemm.k / gemm.atom) / self.parts)
        products = self.rows * self.columns * 64 / 2048  # as many cycles for twice as many bytes
        barriers = gpu.tile_step_cycles * (3 if self.rows > 128 else 1) / self.atoms
        # One warpgroup adds what the tensor cores have summed while they wait; of two the other multiplies.
        waits = self.partial > 0 and self.consumers == 1
        added = self.rows * self.columns / _ADDERS / self.partial if waits else 0.0
        return steps * (max(products, loads) + barriers + added)

    def _end(self, gemm: Gemm) -> float:
        """The cycles of what is done with a tile's sums; operands as large as the result take as long again."""
        weight = (3 if gemm.expensive else 1) + sum(map(gemm.is_whole, gemm.operands))
        return self.rows * self.columns * weight / (8 if self.ping_pong else 8 * max(2, self.consumers))


def refusal(tile: Tile) -> str:
    """Return why a CTA does not hold a tile of the space, or ''."""
    if tile.rows > 128 and tile.columns > 192:
        return "three warpgroups of more than 192 columns do not fit"
    if tile.rows > 128 and tile.columns > 128 and tile.parts > 1:
        return "the partial sums of three warpgroups of more than 128 columns leave no room for a ring"
    return ""


def choices(gemm: Gemm) -> Choices:
    """Return the space: every combination fits but those of `refusal`, and is right."""
    # Sums in two parts take twice the registers, and a warpgroup in turns would have the tensor cores wait for it.
    in_parts = gemm.in_parts
    columns = tuple(size for size in (64, 128, 192, 256) if size == 64 or gemm.n > size - 64)
    splits = (COOPERATIVE, 2, 4) if in_parts else (PING_PONG, COOPERATIVE, 2, 4)
    steps = -(-gemm.k // gemm.atom)
    return {
        "rows": (64, 128, 192)[: 2 if in_parts else 3] if gemm.m > 128 else (64, 128) if gemm.m > 64 else (64,),
        "columns": columns[:3] if in_parts else columns,
        "atoms": (1, 2) if steps > 1 else (1,),
        "splits": tuple(size for size in splits if size <= max(1, steps // 2)),
        "cluster": (1, 2) if gemm.m > 64 else (1,),
        "group": (4, 8, 16),
        "ahead": (0, 1) if gemm.operands else (0,),
        "share": (1, 2),
        **({"partial": tuple(atoms for atoms in (1, 2, 4) if atoms <= steps)} if in_parts else {}),
    }


def default(gemm: Gemm, gpu: Gpu) -> Parameters:
    """Return the parameters that take the fewest cycles by arithmetic."""
    space = choices(gemm)
    tiles = [
        Tile(rows, columns, atoms, splits, cluster, 8, partial=_PARTIAL if gemm.in_parts else 0)
        for rows in space["rows"]
        for columns in space["columns"]
        for splits in space["splits"]
        for cluster in space["cluster"]
        for atoms in _atoms((rows, columns), splits == COOPERATIVE and cluster == 1, space["atoms"])
    ]
    fitting = [tile for tile in tiles if _is_sensible(tile) and (not tile.ping_pong or tile.tiles(gemm) >= 2 * gpu.sms)]
    rare = [tile for tile in fitting if _is_rare(tile)]
    if not gemm.in_parts and 128 in space["columns"] and any(map(gemm.is_whole, gemm.operands)):
        rare.append(Tile(64, 128, 1, COOPERATIVE, 1, 8, share=2))
    # Of equals a cluster: it takes less from L2.
    usual = (tile for tile in fitting if not _is_rare(tile))
    best = min(usual, key=lambda tile: (tile.cycles(gemm, gpu), -tile.cluster))
    other = min(rare, key=lambda tile: tile.cycles(gemm, gpu), default=best)
    return (other if other.cycles(gemm, gpu) < _CLEARLY * best.cycles(gemm, gpu) else best).parameters()


MANY_ROWS = 4096
_FEWER_ROWS = (128, 640)
"""Rows that tiles are chosen for where they are known at the call alone."""


def many(gemm: Gemm, gpu: Gpu) -> Tile:
    """Return the tile, a CTA each, that is fastest for many rows."""
    return _fastest_alone(replace(gemm, m=MANY_ROWS), gpu, (1,))


def by_rows(gemm: Gemm, of_many: Tile, gpu: Gpu) -> list[tuple[int, Tile]]:
    """Return tiles, and up to how many rows each is fastest by arithmetic, the fewest first; `of_many` is the last.

    Of few rows the CTAs of a cluster may share a sum, as many of them for every tile.
    """
    few, more = _FEWER_ROWS
    first = _fastest_alone(replace(gemm, m=few), gpu, (1, 2, 4), of_many)
    tiles = [first, _fastest_alone(replace(gemm, m=more), gpu, tuple({1, first.parts}), of_many), of_many]
    found: list[tuple[int, Tile]] = []
    for rows in range(64, MANY_ROWS + 1, 64):
        best = min(tiles, key=lambda tile: tile.cycles(replace(gemm, m=rows), gpu))
        if found and (found[-1][1] == best or best not in tiles[tiles.index(found[-1][1]) :]):
            found[-1] = (rows, found[-1][1])  # of what was faster for fewer: it stays
        else:
            found.append((rows, best))
    return [*(each for each in found if each[1] != of_many), (0, of_many)]


def _shares_launch(tile: Tile, other: Tile) -> bool:
    """Whether a tile fits a launch of another's: registers are moved between as many threads, or not at all."""
    if tile.moves_registers:
        return other.moves_registers and tile.threads == other.threads
    return not other.moves_registers or tile.threads <= other.threads


def _fastest_alone(gemm: Gemm, gpu: Gpu, parts: Sequence[int], beside: Tile | None = None) -> Tile:
    space = choices(gemm)
    tiles = [
        Tile(rows, columns, atoms, splits, 1, 8)
        for rows in space["rows"]
        for columns in space["columns"]
        for splits in space["splits"]
        for atoms in _atoms((rows, columns), splits == COOPERATIVE, space["atoms"])
    ]
    fitting = [tile for tile in tiles if _is_sensible(tile) and tile.parts in parts and not _is_rare(tile)]
    fitting = [tile for tile in fitting if not tile.ping_pong or tile.tiles(gemm) >= 2 * gpu.sms]
    fitting = [tile for tile in fitting if beside is None or _shares_launch(tile, beside)]
    return min(fitting, key=lambda tile: tile.cycles(gemm, gpu))


def _atoms(size: tuple[int, int], is_alone: bool, atoms: tuple[int, ...]) -> tuple[int, ...]:
    """The atoms of a step that may be fastest: two where one warpgroup multiplies, and the ring has four such steps."""
    if size == (64, 64):
        return atoms[-1:]
    return atoms if size == (64, 128) and is_alone else (1,)


def _is_rare(tile: Tile) -> bool:
    """Whether it has three warpgroups that are given no more registers than any: such ends of tiles took longer."""
    return tile.rows > 128 and not tile.moves_registers


def _is_sensible(tile: Tile) -> bool:
    """Leaves out what was never the fastest: sums that spill, clusters of small tiles, ping-pong of most."""
    if tile.splits == PING_PONG and not tile.ping_pong:
        return False
    if tile.rows > 128:
        return tile.columns in (128, 192) and (tile.splits, tile.cluster) == (COOPERATIVE, 1)
    if tile.accumulators > (192 if tile.partial else 128):
        return False
    if tile.cluster > 1 and (tile.columns < (128 if tile.partial else 192) or tile.splits != COOPERATIVE):
        return False
    if tile.ping_pong:
        return (tile.rows, tile.columns) in ((64, 256), (128, 64), (128, 128))
    if tile.parts > 1 and tile.rows * tile.columns > 64 * 128:
        return False
    return tile.rows == 128 or tile.columns < 192
