"""A case from a seed and an index alone: every family of kernels, its sizes mostly awkward, its work bounded."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from benchmarks.gpu import (
    attention_cases,
    conv_bytes_cases,
    conv_cases,
    gemm_bytes_cases,
    gemm_cases,
    gemm_sm80_cases,
    groups_cases,
    masked_cases,
    moves_cases,
    plain_cases,
    rows_cases,
)
from benchmarks.gpu.attention_cases import AttentionCase
from benchmarks.gpu.conv_bytes_cases import ConvBytesCase
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.fuzz.sizes import LOW, channels, dtype_of, extent, out_of, shape_of
from benchmarks.gpu.gemm_bytes_cases import BytesCase
from benchmarks.gpu.gemm_cases import Case
from benchmarks.gpu.gemm_sm80_cases import WarpCase
from benchmarks.gpu.groups_cases import GroupsCase
from benchmarks.gpu.masked_cases import MaskedCase
from benchmarks.gpu.moves_cases import MovesCase
from benchmarks.gpu.plain_cases import PlainCase
from benchmarks.gpu.rows_cases import RowsCase

__all__ = ["SUITES", "Drawn", "draw"]

SUITES: Mapping[str, Any] = {
    "attention": attention_cases, "conv": conv_cases, "gemm": gemm_cases,
    "conv_bytes": conv_bytes_cases, "gemm_bytes": gemm_bytes_cases, "gemm_sm80": gemm_sm80_cases,
    "groups": groups_cases, "masked": masked_cases,
    "moves": moves_cases, "plain": plain_cases, "rows": rows_cases,
}  # fmt: skip
"""What makes the PrimFunc of each suite's cases."""

_MOST_FLOPS = 1 << 32
_MOST_CONV_FLOPS = 1 << 30
"""From there on the reference of a convolution is in fp32."""
_MOST_ELEMENTS = 1 << 23
"""Of an operand, of a result, and of the scores of an attention."""


@dataclass(frozen=True)
class Drawn:
    """A case of a suite for `target`. `pointed`: at a random point of a template's space, not at its default."""

    seed: int
    index: int
    family: str
    suite: str
    case: Any
    pointed: bool
    target: str = "cuda-sm90"

    @property
    def id(self) -> str:
        """What it is drawn from."""
        return f"{self.seed}:{self.index}"

    def chooser(self) -> random.Random:
        """Return what draws its points, the same each time."""
        return random.Random(f"{self.id}:point")


def draw(seed: int, index: int) -> Drawn:
    """Return the case with this index, the same whenever and wherever it is drawn."""
    chance = random.Random(f"{seed}:{index}")
    family = chance.choices(list(_FAMILIES), [weight for weight, _, _ in _FAMILIES.values()])[0]
    _, suite, made = _FAMILIES[family]
    case, pointed = _opened(made(chance), chance), chance.random() < 0.5
    target = "cuda-sm80" if chance.random() < 0.3 else "cuda-sm90"
    return Drawn(seed, index, family, suite, case, pointed, target)


def _opened(case: Any, chance: random.Random) -> Any:
    """The case, often with sizes that its kernel knows at the call alone."""
    if chance.random() < 0.6:
        return case
    if isinstance(case, AttentionCase):
        if case.layout == "flat" or case.page or case.scored or case.rounded or case.step:
            return case
        names = ["batch", "queries"] if case.layout == "merged" else ["batch", "queries", "keys"]
        return replace(case, open=tuple(name for name in names if chance.random() < 0.7))
    if isinstance(case, Case):
        return replace(case, open=case.batch == 1)
    if isinstance(case, ConvCase):
        axes = (0,) if case.kind == "pixels" or chance.random() < 0.5 else (0, 1, 2)
        return replace(case, open=tuple(axis for axis in axes if chance.random() < 0.8))
    if isinstance(case, MovesCase) and case.kind not in _OPENED:
        return case
    if isinstance(case, PlainCase) and case.kind in ("grouped", "spread"):
        return case
    if isinstance(case, RowsCase | MovesCase | PlainCase):
        sizes = sorted(set(case.shape) - {1})
        return replace(case, open=tuple(size for size in sizes if chance.random() < 0.6))
    return case


def _gemm(chance: random.Random) -> Case:
    while True:
        dtype = dtype_of(chance)
        whole = chance.random() < 0.88  # what the copy engine takes
        n, k = (channels(chance, 4096) if whole else extent(chance, 600) for _ in range(2))
        batch = chance.choice((1, 1, 1, 1, 2, 3, 7, 24))
        m = extent(chance, 2000) if chance.random() < 0.95 else chance.randrange(20_000, 70_000)
        known = [each for each in gemm_cases.EPILOGUES if each != "low" or (whole and dtype in LOW)]
        case = Case(batch, m, n, k, dtype, out_of(chance, dtype), chance.choice(known), chance.random() < 0.5)
        if case.flops <= _MOST_FLOPS and batch * max(m * n, m * k, n * k) <= _MOST_ELEMENTS:
            return case


def _gemm_sm80(chance: random.Random) -> WarpCase:
    """Half of them with rows of any length, which are copied by pieces; many of fp32."""
    while True:
        drawn = _gemm(chance)
        if chance.random() < 0.4:
            drawn = replace(drawn, dtype="float32", out="float32")
        if chance.random() < 0.4:
            drawn = replace(drawn, n=extent(chance, 600, least=2), k=extent(chance, 600))
        if (drawn.dtype in LOW or drawn.k >= 16) and (drawn.epilogue != "low" or drawn.n % 8 == drawn.k % 8 == 0):
            return WarpCase(**{**vars(drawn), "out": drawn.dtype if drawn.out != "float32" else drawn.out})


def _gemm_bytes(chance: random.Random) -> BytesCase:
    """All with rows that the copy engine takes: the passes turn no others."""
    while True:
        n, k = channels(chance, 4096), 16 * -(-channels(chance, 4096) // 16)
        m = extent(chance, 2000) if chance.random() < 0.95 else chance.randrange(20_000, 70_000)
        epilogue = chance.choice(gemm_bytes_cases.EPILOGUES)
        out = gemm_bytes_cases.out_of(chance, epilogue)
        if 2 * m * n * k <= _MOST_FLOPS and max(m * n, m * k, n * k) <= _MOST_ELEMENTS:
            return BytesCase(m, n, k, chance.choice(("int8", "uint8")), out, epilogue)


_KINDS = ("taps", "taps", "taps", "pointwise", "rows", "depthwise", "depthwise", "max", "sum", "pixels")


def _conv(chance: random.Random) -> ConvCase:
    while True:
        kind, dtype = chance.choice(_KINDS), dtype_of(chance, wide=0.2)
        deep = channels(chance, 520) if chance.random() < 0.93 else extent(chance, 130)
        filters = channels(chance, 520) if kind in ("taps", "rows", "pointwise") else deep
        kernel = chance.choice(((3, 3), (3, 3), (1, 1), (5, 5), (7, 7), (1, 3), (3, 1), (2, 2), (4, 3), (1, 7)))
        dilation = chance.choice(((1, 1), (1, 1), (1, 1), (2, 2), (1, 2), (3, 1)))
        strides = chance.choice(((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (1, 2), (3, 2), (5, 5)))
        pads = [chance.choice((0, 1, kernel[i % 2] // 2, kernel[i % 2] - 1)) for i in range(4)]
        if kind == "rows":
            deep, dilation = chance.choice((8, 8, 8, 16)), (dilation[0], 1)
            pads[1] = pads[3] = 0
        if kind in ("pointwise", "pixels"):
            kernel, strides, dilation, pads = (1, 1), (1, 1), (1, 1), [0, 0, 0, 0]
        if kind == "sum":
            dilation = (1, 1)
        sides = (extent(chance, 70), extent(chance, 70)) if chance.random() < 0.93 else (1, chance.randrange(900, 4000))
        case = ConvCase(
            kind, (chance.choice((1, 1, 2, 3, 5, 17)), *sides, deep), filters, kernel, strides,
            (pads[0], pads[1], pads[2], pads[3]), dilation, dtype, out_of(chance, dtype),
            chance.choice(("none", "bias", "bias_relu", "bias_clip", "bias_residual_relu")),
        )  # fmt: skip
        if min(case.size) <= 0 or (kind == "rows" and deep * kernel[1] > 64):
            continue
        result = case.image[0] * prod(case.size) * filters
        flops = 2 * result * prod(kernel) * (deep if kind in ("taps", "rows", "pointwise") else 1)
        if flops < _MOST_CONV_FLOPS and max(result, prod(case.image), prod(case.weight)) <= _MOST_ELEMENTS:
            return case


def _conv_bytes(chance: random.Random) -> ConvBytesCase:
    while True:
        drawn = _conv(chance)
        if drawn.kind in ("taps", "pointwise"):
            image = (*drawn.image[:3], 16 * -(-drawn.image[3] // 16))
            epilogue = chance.choice([each for each in gemm_bytes_cases.EPILOGUES if each != "zero"])
            out = gemm_bytes_cases.out_of(chance, epilogue)
            case = ConvBytesCase(
                image, drawn.filters, drawn.kernel, drawn.strides, drawn.padding, drawn.dilation,
                chance.choice(("int8", "uint8")), out, epilogue,
            )  # fmt: skip
            if max(prod(image), prod(case.of_floats.weight)) <= _MOST_ELEMENTS:
                return case


def _heads(chance: random.Random) -> tuple[int, int]:
    """Heads, and the heads of keys and values that they share."""
    shared = chance.choice((1, 1, 2, 3, 4))
    return shared * chance.choice((1, 1, 2, 3, 4, 8)), shared


_HEADS = (8, 24, 32, 40, 64, 64, 72, 80, 96, 104, 128, 128, 160, 192, 256)


def _bounded(case: AttentionCase) -> bool:
    """Whether its scores, and what the fp64 reference makes of its operands, are few enough."""
    rows = case.batch * case.heads
    scores, wide = rows * case.queries * case.keys, rows * max(case.queries, case.keys) * case.head
    return scores <= _MOST_ELEMENTS and wide <= 2 * _MOST_ELEMENTS and 4 * scores * case.head <= _MOST_FLOPS


def _attention(chance: random.Random) -> AttentionCase:
    while True:
        dtype, layout = chance.choice(LOW), chance.choice(attention_cases.LAYOUTS)
        heads, shared = _heads(chance)
        queries = extent(chance, 1100)
        keys = queries if layout == "merged" else extent(chance, 1100)
        case = AttentionCase(
            chance.choice((1, 1, 2, 3)), heads, queries, keys, chance.choice(_HEADS), shared, dtype,
            out_of(chance, dtype), layout,
            "none" if layout == "flat" else chance.choice(("none", "none", *attention_cases.MASKS)),
            chance.choice((None, None, 0, keys - queries, keys // 3)), chance.choice(("nan", "zero", "never_nan")),
            chance.choice((0.0, 0.0, 0.3)),
        )  # fmt: skip
        if _bounded(case):
            return case


def _decoding(chance: random.Random) -> AttentionCase:
    while True:
        dtype = chance.choice(LOW)
        heads, shared = _heads(chance)
        queries = chance.choice((1, 1, 1, 2, 3, 15, 16, 17, 40, 63, 64))
        keys = extent(chance, 5000, least=256) if chance.random() < 0.9 else chance.randrange(16_000, 33_000)
        case = AttentionCase(
            chance.choice((1, 1, 2, 3, 7)), heads, queries, keys, chance.choice(_HEADS), shared, dtype,
            out_of(chance, dtype), chance.choice(("bshd", "bhsd", "bhsd")),
            chance.choice(("none", "none", *attention_cases.MASKS)),
            chance.choice((None, None, keys - queries, keys // 3)), chance.choice(("nan", "zero")),
        )  # fmt: skip
        if _bounded(case):
            return case


def _paged(chance: random.Random) -> AttentionCase:
    """Of any number of queries over the pages of a cache, whose table names some that are not in it."""
    drawn = _decoding(chance) if chance.random() < 0.7 else _attention(chance)
    page = chance.choice((1, 7, 8, 16, 16, 20, 24, 64, 128, 256))
    return replace(drawn, layout=chance.choice(("bshd", "bhsd")), page=page)


def _quantized(chance: random.Random) -> AttentionCase:
    """With scores, weights or results that are quantized; NaN, which a row without a softmax is, has no code."""
    drawn = _attention(chance)
    drawn = replace(drawn, masked="zero" if drawn.masked == "nan" else drawn.masked)
    scored, rounded, step = (chance.choice((0.0, each, each)) for each in (0.05, 0.004, 0.02))
    out = chance.choice(("uint8", "int8")) if step else drawn.out
    return replace(drawn, scored=scored, rounded=rounded, step=step, out=out)


def _rows(chance: random.Random) -> RowsCase:
    kind = chance.choice(("layer_norm", "rms_norm", "softmax", "softmax", "amax", "gelu", "add", "transpose"))
    moves = kind in ("gelu", "add", "transpose")
    while True:
        columns = channels(chance, 17_000) if chance.random() < 0.85 else extent(chance, 4000)
        shape = (*shape_of(chance, 5000)[-2:], columns)
        if prod(shape) <= _MOST_ELEMENTS:
            break
    dtype = dtype_of(chance, wide=0.4)
    out = dtype if kind == "transpose" else out_of(chance, dtype)
    return RowsCase(kind, shape, dtype, out, "none" if moves else chance.choice(("none", "none", "residual", "scale")))


def _groups(chance: random.Random) -> GroupsCase:
    while True:
        groups = chance.choice((1, 2, 3, 5, 8, 32))
        width = chance.choice((1, 2, 4, 6, 8, 10, 16, 20, 40))
        shape = (chance.choice((1, 1, 2, 5)), extent(chance, 70), extent(chance, 70), groups * width)
        if prod(shape) <= _MOST_ELEMENTS and (shape[-1] % 8 == 0 or chance.random() < 0.2):
            break
    dtype = dtype_of(chance, wide=0.3)
    return GroupsCase(shape, groups, dtype, out_of(chance, dtype), chance.choice(("none", "silu", "residual")))


_OPENED = (
    "gelu", "silu", "tanh", "exp", "relu", "cast", "add", "floor_divide", "equal", "bias", "scale", "where", "take",
    "concat", "pad", "transpose", "silu_transpose", "transpose_add", "transposes_add",
)  # fmt: skip
"""Moves that are written without numbers of their shape."""
_SHAPELESS = ("gelu", "silu", "tanh", "exp", "relu", "add", "bias", "scale", "where", "equal")


def _moves(chance: random.Random) -> MovesCase:
    case = moves_cases.drawn(chance.choice(moves_cases.KINDS), chance)
    if case.kind in _SHAPELESS and chance.random() < 0.6:
        case = replace(case, shape=shape_of(chance, _MOST_ELEMENTS // 4))
    if case.kind == "silu_transpose" and chance.random() < 0.3:
        case = replace(case, shape=(extent(chance, 9), extent(chance, 1000), extent(chance, 800)), axes=(0, 2, 1))
    return replace(case, parameters=None)


def _spread(chance: random.Random) -> PlainCase:
    image = (chance.choice((1, 2, 5)), chance.randrange(1, 9), extent(chance, 260), extent(chance, 260))
    axes = (chance.randrange(4), chance.randrange(6))
    return PlainCase("spread", image, dtype_of(chance, wide=0.3), chance.choice(LOW), axes=axes)


def _grouped(chance: random.Random, dtype: str) -> PlainCase:
    groups, channels_of = chance.choice((2, 3, 4)), chance.choice((1, 4, 8, 9))
    image = (chance.choice((1, 2)), groups * channels_of, extent(chance, 33), extent(chance, 33))
    axes = (groups, groups * chance.choice((1, 5, 8, 16)), chance.choice((1, 3, 5)), chance.choice((1, 2)))
    return PlainCase("grouped", image, dtype, out_of(chance, dtype), axes=axes)


_REDUCED = ("sum", "mean", "max", "softmax", "norm", "shares")


def _reduced(chance: random.Random) -> PlainCase:
    """A reduction over any axes of short and long sizes, mostly with a broadcast behind."""
    while True:
        drawn = _plain(chance)
        if drawn.kind in _REDUCED:
            return drawn


def _plain(chance: random.Random) -> PlainCase:
    kind = chance.choice(("chain",) * 6 + (*_REDUCED, "grouped"))
    dtype = dtype_of(chance, wide=0.3)
    if kind == "grouped":
        return _grouped(chance, dtype)
    shape = shape_of(chance, _MOST_ELEMENTS // 4)
    steps = [chance.choice(plain_cases.UNARY + plain_cases.BINARY * 2) for _ in range(chance.randrange(1, 5))]
    others = [
        tuple(size if chance.random() < 0.6 else 1 for size in shape) for s in steps if s in plain_cases.BINARY
    ]  # fmt: skip
    axes: tuple[int, ...] = ()
    if kind != "chain":
        axes = tuple(sorted(chance.sample(range(len(shape)), chance.randrange(1, len(shape) + 1))))
    return PlainCase(kind, shape, dtype, out_of(chance, dtype), tuple(steps), tuple(others), axes)


def _masked(chance: random.Random) -> MaskedCase:
    return masked_cases.drawn(chance, extent)


_FAMILIES: Mapping[str, tuple[int, str, Callable[[random.Random], Any]]] = {
    "gemm": (10, "gemm", _gemm),
    "gemm_bytes": (5, "gemm_bytes", _gemm_bytes),
    "gemm_sm80": (8, "gemm_sm80", _gemm_sm80),
    "conv_bytes": (3, "conv_bytes", _conv_bytes),
    "conv": (13, "conv", _conv),
    "attention": (7, "attention", _attention),
    "decoding": (6, "attention", _decoding),
    "paged": (4, "attention", _paged),
    "quantized": (4, "attention", _quantized),
    "rows": (12, "rows", _rows),
    "groups": (7, "groups", _groups),
    "moves": (11, "moves", _moves),
    "plain": (5, "plain", _plain),
    "reduced": (9, "plain", _reduced),
    "spread": (2, "plain", _spread),
    "masked": (6, "masked", _masked),
}
"""Each family's share in percent, its suite, and what draws a case."""
