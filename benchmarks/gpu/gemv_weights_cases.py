"""The products of a few rows with weights of 4 or 8 bits that are checked and timed: layers of a decoding step."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gpu.fused import prim_func_of

__all__ = ["EPILOGUES", "TIMED", "WeightsCase", "awkward", "prim_func"]

EPILOGUES = ("none", "bias", "bias_silu", "residual")


@dataclass(frozen=True)
class WeightsCase:
    """[m, k] in `dtype` by weights [n, k] of `bits`, `block` of the depth to a scale (0: all), in the dtype `scales`.

    `zeros`: blocks have zero points of their own. `out` is the result's dtype; no `parameters`: the template's own.
    """

    m: int
    n: int
    k: int
    bits: int = 4
    block: int = 128
    zeros: bool = False
    dtype: str = "float16"
    scales: str = "float16"
    out: str = "float16"
    epilogue: str = "none"
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False
    rule: str = "cuda.matmul_blocks"


_LAYERS = ((11008, 4096), (4096, 11008), (14336, 4096), (4096, 14336), (32000, 4096), (8192, 8192), (28672, 8192))
_SMALL = ((4096, 4096), (2048, 2048))
_FIRST = tuple(WeightsCase(1, n, k, bits, block) for n, k in (*_LAYERS, *_SMALL) for bits, block in ((4, 128), (8, 0)))
_ROWS = tuple(
    WeightsCase(m, n, k, bits, block)
    for m in (2, 4, 8, 16)
    for n, k in ((14336, 4096), (4096, 14336))
    for bits, block in ((4, 128), (8, 0))
)
_KINDS = (
    WeightsCase(1, 14336, 4096, 4, 32), WeightsCase(1, 14336, 4096, 4, 128, zeros=True),
    WeightsCase(1, 14336, 4096, 4, 32, zeros=True, scales="float32"),
    WeightsCase(1, 14336, 4096, 4, 128, dtype="bfloat16", out="bfloat16"),
    WeightsCase(1, 14336, 4096, 8, 0, dtype="bfloat16", out="bfloat16", scales="float32"),
    WeightsCase(1, 14336, 4096, epilogue="bias_silu"), WeightsCase(1, 4096, 14336, epilogue="residual"),
)  # fmt: skip
_TILES = tuple(
    {"tiles": tiles, "warps": warps, "splits": splits, "ahead": ahead}
    for tiles, warps, splits, ahead in (
        *((4, 8, 1, 2), (4, 8, 2, 2), (4, 8, 4, 2), (4, 8, 8, 2), (4, 4, 2, 2), (4, 4, 4, 2), (4, 4, 8, 2)),
        *((2, 8, 1, 4), (2, 8, 2, 4), (2, 8, 4, 4), (2, 4, 1, 4), (2, 4, 4, 4), (1, 8, 1, 8), (1, 8, 2, 4)),
    )
)
_POINTS = tuple(
    WeightsCase(m, n, k, bits, block, parameters=tile)
    for m, (n, k), (bits, block) in (
        (1, (14336, 4096), (4, 128)), (1, (4096, 14336), (4, 128)), (1, (14336, 4096), (8, 0)),
        (8, (14336, 4096), (4, 128)), (16, (4096, 14336), (4, 128)),
    )
    for tile in _TILES
)  # fmt: skip
TIMED = tuple(replace(case, timed=True) for case in (*_FIRST, *_ROWS, *_KINDS, *_POINTS))

_SPACES = tuple(itertools.product((1, 2, 4), (4, 8, 16), (1, 2, 4, 8), (2, 4, 8)))


def awkward(count: int, seed: int) -> list[WeightsCase]:
    """Products of odd sizes, with parameters all over the space; the same for the same seed."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        bits, dtype = draw.choice((4, 8)), draw.choice(("float16", "bfloat16"))
        block = draw.choice((32, 64, 128, 0))
        k = draw.choice((1, 3, 5, 9, 17)) * (block or 32)
        tiles, warps, splits, ahead = draw.choice([each for each in _SPACES if each[0] * each[3] <= 8])
        found.append(
            WeightsCase(
                draw.choice((1, 1, 2, 3, 7, 8, 9, 15, 16)), 2 * draw.choice((1, 3, 8, 9, 25, 61, 128)), k, bits, block,
                draw.random() < 0.5, dtype, draw.choice((dtype, "float32")), draw.choice((dtype, "float32")),
                draw.choice(EPILOGUES), {"tiles": tiles, "warps": warps, "splits": splits, "ahead": ahead},
            )
        )  # fmt: skip
    return found


def prim_func(case: WeightsCase) -> Any:
    """Return the PrimFunc of `case` as the graph passes make it: the product, and what is fused with it."""
    from tvm import relax
    from tvm.relax import op

    from relaxc.schedules.cuda.gemm.blocks_compute import Blocks, product

    weights = Blocks(case.n, case.k, case.bits, case.block or case.k, case.zeros)
    shape, more = (case.m, case.n), {}
    if case.epilogue.startswith("bias"):
        more["bias"] = ((case.n,), "float32")
    if case.epilogue == "residual":
        more["residual"] = (shape, case.dtype)
    parts = list(zip(weights.shapes, ("uint8", case.scales, "uint8"), strict=False))
    operands = [((case.m, case.k), case.dtype), *parts, *more.values()]
    given = [relax.Var(f"x{i}", relax.TensorType(*operand)) for i, operand in enumerate(operands)]
    block = relax.BlockBuilder()
    with block.function("main", given):
        with block.dataflow():
            count = 1 + len(parts)
            value = block.emit_te(
                product(weights), *given[:count], primfunc_name_hint="blocks", primfunc_attrs={"op_pattern": 4}
            )
            if more:
                value = block.emit(op.add(value, op.astype(given[count], "float32")))
            if case.epilogue == "bias_silu":
                value = block.emit(op.nn.silu(value))
            result = block.emit_output(value if case.out == "float32" else block.normalize(op.astype(value, case.out)))
        block.emit_func_output(result)
    return prim_func_of(block.get())
