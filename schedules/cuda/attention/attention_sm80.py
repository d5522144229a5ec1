"""Template `cuda.attention_sm80`: attention on the tensor cores of sm_80 and every later device, no scores in memory.

After FlashAttention-2 (Dao, 2023): the algorithm is `warps.cuh`. Q, K and V are read where they lie, heads split or
merged; sums and softmax are fp32. Of few queries the warps of a CTA share the keys, as Flash-Decoding's CTAs do.
"""

from __future__ import annotations

from relaxc.schedules.cuda.attention.decoding_sm90 import packed
from relaxc.schedules.cuda.attention.form import Attention, match
from relaxc.schedules.cuda.attention.strides import Heads
from relaxc.schedules.cuda.attention.text import AT_CALL, constants, functions
from relaxc.schedules.cuda.attention.tile_sm80 import WarpTile, choices, default, refusal
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.sizes import at_least_one
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["AttentionSm80", "kernel"]


class AttentionSm80(TextTemplate[Attention]):
    """`out[b, h, m, :] = sum over n of softmax over n of logit(q[b, h, m, :] · k[b, h / group, n, :]) * v[…, n, :]`.

    Parameters: `rows`, queries of a tile, and `warp`, those of a warp; `block` keys a step, `stages` steps in shared
    memory; `slices`, groups of warps that share the keys.
    """

    name = "cuda.attention_sm80"
    version = 1

    def match(self, func: PrimFunc) -> Attention | Declined:
        """See `TextTemplate`."""
        found = match(func)
        return found if isinstance(found, Declined) or found.symbols else packed(found)

    def space(self, form: Attention, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return choices(form.guessed(), gpu)

    def default(self, form: Attention, gpu: Gpu) -> Parameters:
        """See `TextTemplate`."""
        return default(form.guessed(), gpu)

    def kernel_of(self, form: Attention, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        tile = WarpTile(**parameters)
        return Declined(reason) if (reason := refusal(tile, form.guessed(), gpu)) else kernel(form, tile, gpu)


def kernel(attention: Attention, tile: WarpTile, gpu: Gpu) -> TextKernel:
    """Return the launch of `attention` in tiles of `tile`, a CTA each."""
    at = attention
    return TextKernel(
        source=_source(at, tile),
        maps=(),
        pointers=(at.q.buffer, at.k.buffer, at.v.buffer, at.out.buffer, *at.operands),
        grid=at_least_one(tile.tiles(at)),
        cluster=1,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(at),
        per_sm=tile.per_sm(at, gpu),
        overlaps=False,
        sizes=at.sizes,
    )


def _source(attention: Attention, tile: WarpTile) -> str:
    at = attention
    numbers = {
        "TILE_M": tile.rows, "WARP_M": tile.warp, "BLOCK": tile.block, "STAGES": tile.stages, "SLICES": tile.slices,
        "HEADS": at.heads, "GROUP": at.group, "HEAD": at.head, "OFFSET": at.logit.causal or 0,
        **_places("Q", at.q), **_places("K", at.k), **_places("V", at.v), **_places("O", at.out),
        "NAN_": 0, "ZERO": 1, "NEVER_NAN": 2, **({} if at.symbols else {"QUERIES": at.queries}),
    }  # fmt: skip
    switches = {
        "CAUSAL": at.logit.causal is not None, "HAS_LOGIT": bool(at.logit.text), "KEEPS_Q": tile.keeps_queries(at),
        "ONE_BLOCK": not at.symbols and at.keys <= tile.block,
        "EVEN_KEYS": isinstance(at.keys, int) and at.keys % 2 == 0,
    }  # fmt: skip
    lines = [constants(at, numbers, switches)]
    lines.append("using namespace ampere;\n")
    lines.append("using constant::load;\nusing constant::load_pair;\n")  # loads may go before the copies of others
    algorithm = (text_of("relaxc.schedules.cuda.attention", name) for name in ("merge.cuh", "results.cuh", "warps.cuh"))
    text = "".join((*lines, functions(at), _sizes(at), *algorithm))
    instructions = "".join(text_of("relaxc.schedules.cuda.common", name) for name in ("hopper.cuh", "ampere.cuh"))
    return f"{instructions}namespace NAME_ {{\n{text}}}\n{_entry(at)}"


def _places(name: str, at: Heads) -> dict[str, int]:
    """Where an operand begins, and how far its rows are apart, in elements."""
    return {f"{name}_ROW": at.row_at, f"{name}_HEAD": at.head_at, f"{name}_ROWS": at.rows}


def _sizes(attention: Attention) -> str:
    """The struct Sizes: constants, or what is known at the call."""
    at = attention
    numbers = (
        at.batch,
        at.queries,
        at.keys,
        *(n for each in (at.q, at.k, at.v, at.out) for n in (each.heads, each.batches)),
    )
    types = ["int"] * 3 + ["long long"] * 8
    fields = zip(types, AT_CALL, numbers, strict=True)
    if not at.symbols:
        members = "".join(f"  static constexpr {kind} {name} = {value};\n" for kind, name, value in fields)
        return f"struct Sizes {{\n{members}  DEV Sizes(const Operands& operands) {{}}\n}};\n"
    members = "".join(f"  const {kind} {name};\n" for kind, name, _ in fields)
    given = ", ".join(f"{name}(({kind})operands.{name})" for kind, name in zip(types, AT_CALL, strict=True))
    return f"struct Sizes {{\n{members}  DEV Sizes(const Operands& operands) : {given} {{}}\n}};\n"


def _entry(attention: Attention) -> str:
    """The function that the PrimFunc calls."""
    operands = [f"p{i}" for i in range(len(attention.operands))]
    pointers = "".join(f", const void* {name}" for name in operands)
    if attention.symbols:
        sizes = [f"s{i}" for i in range(len(attention.sizes))]
        pointers, operands = pointers + "".join(f", long long {name}" for name in sizes), [*operands, *sizes]
    given = ", ".join(f"(const NAME_::Low*){name}" for name in "qkv")
    return (
        "__device__ __forceinline__ void NAME(void* shared, const void* q, const void* k, const void* v, void* out"
        f"{pointers}) {{\n  NAME_::attention((uint8_t*)shared, {given}, (NAME_::Out*)out, "
        f"NAME_::Operands{{{', '.join(operands)}}});\n}}\n"
    )
