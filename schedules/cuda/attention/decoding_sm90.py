"""Template `cuda.decoding_sm90`: attention of few queries to many keys, which the CTAs of a cluster share.

After "Flash-Decoding" (Dao et al., 2023); the algorithm is `decoding.cuh`. One query of each of the heads that share
keys makes one tile of them all, so that keys and values are read once. Up to 16 queries are multiplied by warps
(`decoding_warps.cuh`), more by a warpgroup (`decoding_warpgroup.cuh`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil, gcd

from relaxc.schedules.cuda.attention.boxes import Boxes, boxes_of
from relaxc.schedules.cuda.attention.form import Attention, match
from relaxc.schedules.cuda.attention.strides import Heads
from relaxc.schedules.cuda.attention.text import constants, entry, functions, multiply, tensor_map
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["DecodingSm90", "packed"]

_ROWS, _FEW_ROWS = 64, 16
"""Queries of a tile that a warpgroup multiplies, and of one that warps do."""
_WARP_KEYS = 16
"""Of a block."""
_LEAST_KEYS = 256
_SWIZZLED = 8
"""Rows in which the copy engine turns the places of columns: what is copied on its own begins at such."""
_SPLITS = (2, 4, 8)
"""CTAs of a cluster; more than eight is not portable."""
_BLOCKS = (64, 128)
_MOST_STAGES = 8
_RESERVED_BYTES = 1024
"""Shared memory of a CTA that is the system's."""
_SPARE_REGISTERS, _FEW_SPARE_REGISTERS = 64, 60
_SHARES = (1, 2)
_MERGE_KEYS = 300
"""A merge takes as long as so many keys. This and `_WAVES` tell the fastest splits of 22 shapes that an H100 timed."""
_WAVES = 3
"""Of clusters that each end before the next begins: of more, one runs into the other."""


@dataclass(frozen=True)
class _Tile:
    """`splits` CTAs share the keys, `block` of them a step; an SM holds `share` CTAs."""

    splits: int
    block: int
    share: int

    def warps(self, attention: Attention) -> int:
        """Return the warps that multiply."""
        return self.block // _WARP_KEYS if _is_few(attention) else 4

    def stages(self, attention: Attention, gpu: Gpu) -> int:
        """Return the blocks of keys, and of values, in shared memory at a time: as many as fit, up to eight."""
        of_sm = gpu.shared_bytes_per_sm // self.share - _RESERVED_BYTES
        room = min(gpu.shared_bytes_per_block, of_sm) - self._beside(attention)
        return min(_MOST_STAGES, room // (2 * self.block * _row_bytes(attention)))

    def shared_bytes(self, attention: Attention, gpu: Gpu) -> int:
        """Shared memory of a CTA: the queries, the rings, barriers, and room to align them."""
        ring = 2 * self.stages(attention, gpu) * self.block * _row_bytes(attention)
        return self._beside(attention) + ring

    def _beside(self, attention: Attention) -> int:
        pages = 2 * 4 * self.entries(attention) if attention.is_paged else 0
        return 1024 + _rows(attention) * _row_bytes(attention) + 16 + 4 * _MOST_STAGES * 8 + pages

    def entries(self, attention: Attention) -> int:
        """Return how many pages a CTA's keys lie in at most: their numbers are in shared memory."""
        keys = ceil(ceil(attention.keys / self.block) / self.splits) * self.block
        return max((ceil(keys / each.pages.rows) + 1 for each in (attention.k, attention.v) if each.pages), default=0)

    def step(self, attention: Attention, at: Heads) -> int:
        """Return the rows of keys or values that are copied at once: of one page."""
        return self.block if at.pages is None else gcd(at.pages.rows, self.block, attention.keys)

    def _exchange_bytes(self, attention: Attention) -> int:
        """What lies in the rings in the end: sums of each warp and of all, and what the other CTAs send of theirs."""
        parts = 1 + (self.warps(attention) if _is_few(attention) else 0)
        sums = 4 * attention.queries * (attention.head + 2) * parts
        letter = 16 * (ceil(attention.queries * attention.head // 4 / self.splits) + attention.queries)
        return ceil(sums / 16) * 16 + self.splits * letter

    def fits(self, attention: Attention, gpu: Gpu) -> bool:
        """Return whether an SM holds it without spilling, and every CTA has keys."""
        if any(self.step(attention, at) % _SWIZZLED for at in (attention.k, attention.v)):
            return False
        if _is_few(attention):  # the queries, and the sums of 16
            registers = attention.head // 4 + attention.head // 2 + _FEW_SPARE_REGISTERS
        else:
            registers = self.block // 2 + self.block // 4 + attention.head // 2 + _SPARE_REGISTERS
        threads = self.share * 32 * (self.warps(attention) + 1)
        stages = self.stages(attention, gpu)
        if registers > min(255, gpu.registers_per_sm // threads) or stages < 2:
            return False
        if self._exchange_bytes(attention) > 2 * stages * self.block * _row_bytes(attention):
            return False
        return ceil(attention.keys / self.block) >= self.splits


def _row_bytes(attention: Attention) -> int:
    return ceil(attention.head / 64) * 128


def _is_few(attention: Attention) -> bool:
    return attention.queries <= _FEW_ROWS


def _rows(attention: Attention) -> int:
    return _FEW_ROWS if _is_few(attention) else _ROWS


class DecodingSm90(TextTemplate[Attention]):
    """`out[b, h, m, :] = sum over n of softmax over n of logit(q[b, h, m, :] · k[b, h / group, n, :]) * v[…, n, :]`.

    Parameters: `splits`, CTAs that share the keys; `block` keys a step; `share`, CTAs that an SM holds.
    """

    name = "cuda.decoding_sm90"
    version = 3
    since = "sm_90a"

    def match(self, func: PrimFunc) -> Attention | Declined:
        """See `TextTemplate`."""
        found = match(func)
        if isinstance(found, Declined):
            return found
        if found.symbols:
            return Declined("its sizes are symbolic")
        if found.rounded or found.finish:
            return Declined("it rounds weights or results")
        found = packed(found)
        if found.is_paged and any(
            at.pages and gcd(at.pages.rows, min(_BLOCKS), found.keys) % _SWIZZLED for at in (found.k, found.v)
        ):
            return Declined(f"its pages are not of multiples of {_SWIZZLED} rows")
        if found.queries > _ROWS or found.keys < _LEAST_KEYS:
            return Declined(f"it is not of up to {_ROWS} queries and at least {_LEAST_KEYS} keys")
        return found

    def outdone(self, form: Attention, gpu: Gpu) -> str:
        """See `TextTemplate`: with a tile for each SM there is nothing to share, only a merge to wait for.

        Heads that share keys are read once here: 32x32x1, 4096x128 with 8 of keys takes 181 us on an H100, there 260.
        """
        if form.is_paged or form.packed:
            return ""
        return "every SM has queries of its own" if form.batch * form.heads > gpu.sms else ""

    def space(self, form: Attention, gpu: Gpu) -> Choices:
        """See `TextTemplate`; a point that does not fit is refused."""
        return {"splits": _SPLITS, "block": _BLOCKS, "share": _SHARES}

    def default(self, form: Attention, gpu: Gpu) -> Parameters:
        """See `TextTemplate`: by warps where queries are few. A warpgroup was faster with CTAs up to what the device
        has, or two an SM where there are more, and keys that fill one.
        """
        if _is_few(form):
            return asdict(_by_warps(form, gpu))
        tiles = form.batch * form.heads
        fitting = [each for s in _SPLITS for b in _BLOCKS if (each := _Tile(s, b, 1)).fits(form, gpu)]
        filling = [each for each in fitting if tiles * each.splits <= gpu.sms]
        best = max(filling or fitting[:1] or [_Tile(2, 64, 1)], key=lambda each: (each.splits, each.block))
        beside = replace(best, share=2)
        return asdict(best if filling or not beside.fits(form, gpu) else beside)

    def kernel_of(self, form: Attention, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        tile = _Tile(**parameters)
        return _kernel(form, tile, gpu) if tile.fits(form, gpu) else Declined("an SM does not hold that tile")


def _by_warps(attention: Attention, gpu: Gpu) -> _Tile:
    """The tile whose waves of clusters take least by arithmetic. Two CTAs are to fit on an SM, as the next kernel's
    clusters find room beside them then. A large step needs keys for two.
    """
    every = [_Tile(splits, block, share) for share in _SHARES[::-1] for splits in _SPLITS[::-1] for block in _BLOCKS]
    fitting = [each for each in every if each.fits(attention, gpu)]
    wanted = [
        each
        for each in fitting
        if each.share == fitting[0].share
        and (each.block == _BLOCKS[0] or attention.keys >= 2 * each.block * each.splits)
    ]

    def rank(tile: _Tile) -> tuple[float, int]:
        waves = attention.batch * attention.heads / gpu.alone(tile.splits)
        waves = ceil(waves) if waves <= _WAVES else waves
        return waves * (attention.keys / tile.splits + _MERGE_KEYS), -tile.block

    return min(wanted, key=rank, default=_Tile(2, _BLOCKS[0], 1))


def packed(attention: Attention) -> Attention:
    """Return heads that share keys as queries of one head, where each has one query: they lie in rows all the same."""
    at, group = attention, attention.group
    seen = at.logit.causal is None or at.logit.causal >= at.keys - 1
    whole = all(each.row_at == 0 and each.head_at % group == 0 for each in (at.q, at.out))
    if at.queries != 1 or group == 1 or not seen or not whole:
        return at
    q, out = (_by_groups(each, group) for each in (at.q, at.out))
    logit = replace(at.logit, causal=None)
    return replace(at, heads=at.heads // group, group=1, queries=group, q=q, out=out, logit=logit, packed=True)


def _by_groups(at: Heads, group: int) -> Heads:
    return replace(at, rows=at.heads, heads=at.heads * group, head_at=at.head_at // group)


def _kernel(attention: Attention, tile: _Tile, gpu: Gpu) -> TextKernel:
    at, shared = attention, attention.heads // attention.group
    k, v = (boxes_of(at, each, shared, tile.step(at, each)) for each in (at.k, at.v))
    return TextKernel(
        source=_source(at, tile, gpu, k, v),
        maps=[tensor_map(at, at.q, at.queries, at.heads, _rows(at)), k.map, v.map],
        pointers=(at.out.buffer, *at.operands),
        grid=at.batch * at.heads * tile.splits,
        cluster=tile.splits,
        threads=32 * (tile.warps(at) + 1),
        shared_bytes=tile.shared_bytes(at, gpu),
        per_sm=tile.share,
    )


def _source(attention: Attention, tile: _Tile, gpu: Gpu, k: Boxes, v: Boxes) -> str:
    at, few = attention, _is_few(attention)
    numbers = {
        "SPLITS": tile.splits, "BLOCK": tile.block, "STAGES": tile.stages(at, gpu), "ROWS": _rows(at),
        "WARPS": tile.warps(at), "RELEASES": tile.warps(at) if few else 1, "PARTS": tile.warps(at) if few else 0,
        "HEADS": at.heads,
        "GROUP": at.group, "QUERIES": at.queries, "KEYS": at.keys, "HEAD": at.head, "OFFSET": at.logit.causal or 0,
        "LAST_PAIR": at.keys - 2 if at.keys % 2 == 0 else at.keys - 1, "Q_ROW": at.q.row_at, "Q_HEAD": at.q.head_at,
        "K_ROW": at.k.row_at, "K_HEAD": at.k.head_at, "V_ROW": at.v.row_at, "V_HEAD": at.v.head_at,
        "O_ROW": at.out.rows, "O_HEAD": at.out.heads, "O_BATCH": at.out.batches, "NAN_": 0, "ZERO": 1, "NEVER_NAN": 2,
        "K_STEP": tile.step(at, at.k), "V_STEP": tile.step(at, at.v), "ENTRIES": tile.entries(at),
    }  # fmt: skip
    switches = {"CAUSAL": at.logit.causal is not None, "HAS_LOGIT": bool(at.logit.text)}
    by = ["using namespace ampere;\n"] if few else list(multiply(tile.block, at.head, at.dtype))
    parts = [constants(at, numbers, switches), functions(at), *by, k.text("k_box"), v.text("v_box")]
    algorithm = ("merge.cuh", "decoding.cuh", "decoding_warps.cuh" if few else "decoding_warpgroup.cuh")
    parts += [text_of("relaxc.schedules.cuda.attention", name) for name in algorithm]
    instructions = [text_of("relaxc.schedules.cuda.common", name) for name in ("hopper.cuh", *["ampere.cuh"] * few)]
    return f"{''.join(instructions)}namespace NAME_ {{\n{''.join(parts)}}}\n{entry(at, 'decoding')}"
