"""Template `cuda.attention_sm80`: attention on the tensor cores of sm_80 and every later device, no scores in memory.

After FlashAttention-2 (Dao, 2023): the algorithm is `warps.cuh`. Q, K and V are read where they lie, heads split or
merged; sums and softmax are fp32. Of few queries the warps of a CTA share the keys, as Flash-Decoding's CTAs do.
"""

from __future__ import annotations

from relaxc.schedules.cuda.attention.decoding_sm90 import packed
from relaxc.schedules.cuda.attention.form import Attention, match
from relaxc.schedules.cuda.attention.strides import Heads
from relaxc.schedules.cuda.attention.text import constants, functions
from relaxc.schedules.cuda.attention.tile_sm80 import WarpTile, choices, default, refusal
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.template import AmpereTemplate
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["AttentionSm80", "kernel"]


class AttentionSm80(AmpereTemplate[Attention]):
    """`out[b, h, m, :] = sum over n of softmax over n of logit(q[b, h, m, :] · k[b, h / group, n, :]) * v[…, n, :]`.

    Parameters: `rows`, queries of a tile, and `warp`, those of a warp; `block` keys a step, `stages` steps in shared
    memory; `slices`, groups of warps that share the keys.
    """

    name = "cuda.attention_sm80"
    version = 1

    def match(self, func: PrimFunc) -> Attention | Declined:
        """See `HopperTemplate`."""
        found = match(func)
        return found if isinstance(found, Declined) else packed(found)

    def choices_of(self, form: Attention, gpu: Gpu) -> Choices:
        """See `HopperTemplate`."""
        return choices(form, gpu)

    def default_of(self, form: Attention, gpu: Gpu) -> Parameters:
        """See `HopperTemplate`."""
        return default(form, gpu)

    def kernel_of(self, form: Attention, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `HopperTemplate`."""
        tile = WarpTile.of(parameters)
        return Declined(reason) if (reason := refusal(tile, form, gpu)) else kernel(form, tile, gpu)


def kernel(attention: Attention, tile: WarpTile, gpu: Gpu) -> TextKernel:
    """Return the launch of `attention` in tiles of `tile`, a CTA each."""
    at = attention
    return TextKernel(
        source=_source(at, tile),
        maps=(),
        pointers=(at.q.buffer, at.k.buffer, at.v.buffer, at.out.buffer, *at.operands),
        grid=tile.tiles(at),
        cluster=1,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(at),
        per_sm=tile.per_sm(at, gpu),
        overlaps=False,
    )


def _source(attention: Attention, tile: WarpTile) -> str:
    at = attention
    numbers = {
        "TILE_M": tile.rows, "WARP_M": tile.warp, "BLOCK": tile.block, "STAGES": tile.stages, "SLICES": tile.slices,
        "BATCH": at.batch, "HEADS": at.heads, "GROUP": at.group, "QUERIES": at.queries, "KEYS": at.keys,
        "HEAD": at.head, "OFFSET": at.logit.causal or 0,
        "LAST_PAIR": at.keys - 2 if at.keys % 2 == 0 else at.keys - 1,
        **_strides("Q", at.q), **_strides("K", at.k), **_strides("V", at.v), **_strides("O", at.out),
        "NAN_": 0, "ZERO": 1, "NEVER_NAN": 2,
    }  # fmt: skip
    switches = {
        "CAUSAL": at.logit.causal is not None, "HAS_LOGIT": bool(at.logit.text), "KEEPS_Q": tile.keeps_queries(at),
    }  # fmt: skip
    lines = [constants(at, numbers, switches)]
    lines.append("using namespace ampere;\n")
    lines.append("using constant::load;\nusing constant::load_pair;\n")  # loads may go before the copies of others
    algorithm = (text_of("relaxc.schedules.cuda.attention", name) for name in ("merge.cuh", "results.cuh", "warps.cuh"))
    text = "".join((*lines, functions(at), *algorithm))
    instructions = "".join(text_of("relaxc.schedules.cuda.common", name) for name in ("hopper.cuh", "ampere.cuh"))
    return f"{instructions}namespace NAME_ {{\n{text}}}\n{_entry(at)}"


def _strides(name: str, at: Heads) -> dict[str, int]:
    """Where an operand begins, and its strides in elements."""
    return {
        f"{name}_ROW": at.row_at, f"{name}_HEAD": at.head_at, f"{name}_ROWS": at.rows, f"{name}_HEADS": at.heads,
        f"{name}_BATCHES": at.batches,
    }  # fmt: skip


def _entry(attention: Attention) -> str:
    """The function that the PrimFunc calls."""
    operands = [f"p{i}" for i in range(len(attention.operands))]
    pointers = "".join(f", const void* {name}" for name in operands)
    given = ", ".join(f"(const NAME_::Low*){name}" for name in "qkv")
    return (
        "__device__ __forceinline__ void NAME(void* shared, const void* q, const void* k, const void* v, void* out"
        f"{pointers}) {{\n  NAME_::attention((uint8_t*)shared, {given}, (NAME_::Out*)out, "
        f"NAME_::Operands{{{', '.join(operands)}}});\n}}\n"
    )
