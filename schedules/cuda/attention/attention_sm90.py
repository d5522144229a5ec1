"""Template `cuda.attention_sm90`: attention on Hopper's tensor cores, with no scores in memory.

After FlashAttention-3 (Shah et al., 2024): a producer warp and one to three consumer warpgroups of 64 queries; the
algorithm is `kernel.cuh`. Q, K and V are read where they lie, heads split or merged; sums and softmax are fp32.
"""

from __future__ import annotations

from relaxc.schedules.cuda.attention.form import Attention, match
from relaxc.schedules.cuda.attention.text import constants, entry, functions, multiply, tensor_map
from relaxc.schedules.cuda.attention.tile import MOST_ROUNDED, Tile, choices, default, order
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["AttentionSm90"]


class AttentionSm90(TextTemplate[Attention]):
    """`out[b, h, m, :] = sum over n of softmax over n of logit(q[b, h, m, :] · k[b, h / group, n, :]) * v[…, n, :]`.

    Parameters: `consumers`, warpgroups of 64 queries; `block` keys a step; `per_sm`, CTAs on an SM.
    """

    name = "cuda.attention_sm90"
    version = 2
    since = "sm_90a"

    def match(self, func: PrimFunc) -> Attention | Declined:
        """See `TextTemplate`."""
        found = match(func)
        if not isinstance(found, Declined) and found.symbols:
            return Declined("its sizes are symbolic")
        if not isinstance(found, Declined) and found.is_paged:
            return Declined("its keys lie in pages")
        if not isinstance(found, Declined) and found.rounded and max(found.keys, found.head) > MOST_ROUNDED:
            return Declined(f"it rounds the weights of more than {MOST_ROUNDED} keys, or columns")
        return found

    def space(self, form: Attention, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return choices(form, gpu)

    def default(self, form: Attention, gpu: Gpu) -> Parameters:
        """See `TextTemplate`."""
        return default(form, gpu)

    def kernel_of(self, form: Attention, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        tile = Tile(**parameters)
        return kernel(form, tile, gpu) if tile.fits(form, gpu) else Declined("an SM does not hold that tile")


def kernel(attention: Attention, tile: Tile, gpu: Gpu) -> TextKernel:
    """Return the launch of `attention` in tiles of `tile`."""
    shared = attention.heads // attention.group
    return TextKernel(
        source=_source(attention, tile, gpu),
        maps=[
            tensor_map(attention, attention.q, attention.queries, attention.heads, tile.rows),
            tensor_map(attention, attention.k, attention.keys, shared, tile.block),
            tensor_map(attention, attention.v, attention.keys, shared, tile.block),
        ],
        pointers=(attention.out.buffer, *attention.operands),
        grid=tile.grid(attention, gpu),
        cluster=1,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(attention),
        per_sm=tile.per_sm if tile.per_sm > 1 else 0,
    )


def _source(attention: Attention, tile: Tile, gpu: Gpu) -> str:
    at = attention
    numbers = {
        "CONSUMERS": tile.consumers, "BLOCK": tile.block, "STAGES": tile.stages(at), "BATCH": at.batch,
        "HEADS": at.heads, "GROUP": at.group, "QUERIES": at.queries, "KEYS": at.keys, "HEAD": at.head,
        "OFFSET": at.logit.causal or 0, "LAST_PAIR": at.keys - 2 if at.keys % 2 == 0 else at.keys - 1,
        "Q_ROW": at.q.row_at, "Q_HEAD": at.q.head_at, "K_ROW": at.k.row_at, "K_HEAD": at.k.head_at,
        "V_ROW": at.v.row_at, "V_HEAD": at.v.head_at, "O_ROW": at.out.rows, "O_HEAD": at.out.heads,
        "O_BATCH": at.out.batches, "NAN_": 0, "ZERO": 1, "NEVER_NAN": 2,
    }  # fmt: skip
    switches = {
        "CAUSAL": at.logit.causal is not None, "HAS_LOGIT": bool(at.logit.text), "TURNS": tile.consumers > 1,
        "MOVES_REGISTERS": tile.moves_registers,
    }  # fmt: skip
    lines = [constants(at, numbers, switches)]
    parts = [*lines, functions(at), _tiles(at, tile, gpu), *multiply(tile.block, at.head, at.dtype)]
    parts.append("using namespace ampere;\n")
    parts += [text_of("relaxc.schedules.cuda.attention", name) for name in ("results.cuh", "kernel.cuh")]
    instructions = "".join(text_of("relaxc.schedules.cuda.common", name) for name in ("hopper.cuh", "ampere.cuh"))
    return f"{instructions}namespace NAME_ {{\n{''.join(parts)}}}\n{entry(at, 'attention')}"


def _tiles(attention: Attention, tile: Tile, gpu: Gpu) -> str:
    """Which tiles a CTA computes: from a list, or every so many."""
    found = order(tile, attention, gpu)
    if found is None:
        total, ctas = tile.tiles(attention), tile.grid(attention, gpu)
        return (
            f"DEV int first_tile(int cta) {{ return cta * {total // ctas} + min(cta, {total % ctas}); }}\n"
            f"DEV int tile_at(int it) {{ return blockIdx.x + (it - first_tile(blockIdx.x)) * {ctas}; }}\n"
        )
    numbers, starts = (", ".join(map(str, each)) for each in found)
    return (
        f"__device__ const unsigned short TILE_ORDER[] = {{{numbers}}};\n"
        f"__device__ const unsigned short TILE_STARTS[] = {{{starts}}};\n"
        "DEV int first_tile(int cta) { return TILE_STARTS[cta]; }\n"
        "DEV int tile_at(int it) { return TILE_ORDER[it]; }\n"
    )
