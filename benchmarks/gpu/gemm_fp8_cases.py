"""The products of 8-bit floats that are checked and timed: what the passes make of a model quantized to e4m3."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gpu.fused import prim_func_of

__all__ = ["EPILOGUES", "FP8", "TIMED", "Fp8Case", "awkward", "prim_func"]

FP8 = "float8_e4m3fn"
EPILOGUES = ("none", "scale", "columns", "rows", "columns_gelu", "columns_residual", "quantize")


@dataclass(frozen=True)
class Fp8Case:
    """[m, k] by [n, k] by columns, both e4m3, summed in fp32.

    Epilogues: `scale` is one number; `columns` a scale and a bias a column; `rows` a scale a row and one a column;
    `quantize` divides what `columns` gives by a scale and makes e4m3 of it. `out` is the result's dtype; no
    `parameters`: the template's own.
    """

    m: int
    n: int
    k: int
    out: str = "float16"
    epilogue: str = "scale"
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False


_SHAPES = (
    *((128, 3072, 768), (128, 768, 3072), (4096, 3072, 768), (4096, 768, 3072), (1024, 1024, 1024)),
    *((4096, 4096, 4096), (8192, 8192, 8192), (512, 4096, 1024), (2048, 5632, 2048)),
)
_PLAIN = tuple(Fp8Case(*mnk) for mnk in _SHAPES)
_FUSED = tuple(
    Fp8Case(*mnk, out=FP8 if epilogue == "quantize" else "bfloat16", epilogue=epilogue)
    for mnk in ((4096, 3072, 768), (4096, 768, 3072))
    for epilogue in ("columns_gelu", "columns_residual", "quantize")
)
_TILES = (
    {"rows": 128, "columns": 128, "splits": 1, "cluster": 1},
    {"rows": 128, "columns": 128, "splits": 1, "cluster": 2},
    {"rows": 128, "columns": 192, "splits": 1, "cluster": 2},
    {"rows": 128, "columns": 128, "splits": 1, "cluster": 2, "partial": 2},
    {"rows": 128, "columns": 192, "splits": 1, "cluster": 2, "partial": 2},
    {"rows": 128, "columns": 192, "splits": 1, "cluster": 2, "partial": 4},
    {"rows": 128, "columns": 128, "splits": 1, "cluster": 2, "partial": 4},
)
_POINTS = tuple(Fp8Case(*mnk, parameters=tile) for mnk in ((4096, 4096, 4096), (4096, 768, 3072)) for tile in _TILES)
_SMALL = tuple(
    Fp8Case(
        128, 768, 3072, parameters={"rows": 64, "columns": 64, "splits": splits, "atoms": atoms, "partial": partial}
    )
    for splits, atoms, partial in ((1, 1, 1), (1, 2, 2), (2, 2, 2), (4, 2, 2), (4, 1, 1))
)
TIMED = tuple(replace(case, timed=True) for case in (*_PLAIN, *_POINTS, *_SMALL, *_FUSED))

_NAMES = ("rows", "columns", "atoms", "splits", "cluster", "group", "ahead", "share", "partial")
_SPACES = tuple(
    itertools.product((64, 128), (64, 128, 192), (1, 2), (1, 2, 4), (1, 2), (4, 8, 16), (0, 1), (1, 2), (1, 2, 4))
)


def awkward(count: int, seed: int) -> list[Fp8Case]:
    """Products of odd sizes, with parameters all over the space; the same for the same seed."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        epilogue = draw.choice(EPILOGUES)
        low = draw.choice(("float16", "bfloat16", "float32"))
        found.append(
            Fp8Case(
                m=draw.choice((1, 7, 64, 65, 100, 128, 197, 333, 512)),
                n=8 * draw.choice((1, 3, 8, 9, 17, 32, 40, 63)),
                k=16 * draw.choice((1, 7, 8, 9, 24, 33, 100, 129)),
                out=FP8 if epilogue == "quantize" else "float32" if epilogue == "none" else low,
                epilogue=epilogue,
                parameters=dict(zip(_NAMES, draw.choice(_SPACES), strict=True)),
            )
        )
    return found


def prim_func(case: Fp8Case) -> Any:
    """Return the PrimFunc of `case` as the graph passes make it: the product, and what is fused with it."""
    from tvm import relax

    from relaxc.schedules.cuda.gemm.compute import by_columns
    from relaxc.service.passes.legalize.legalize_quantized import QUANTIZED_BY_CASTS

    shape, columns = (case.m, case.n), ((case.n,), "float32")
    more: list[tuple[tuple[int, ...], str]] = []
    if case.epilogue == "scale":
        more = [((), "float32")]
    if case.epilogue == "rows":
        more = [((case.m, 1), "float32"), columns]
    if case.epilogue.startswith("columns") or case.epilogue == "quantize":
        more = [columns, columns]
    if case.epilogue == "columns_residual":
        more.append((shape, case.out))
    if case.epilogue == "quantize":
        more.append(((), "float32"))
    operands = [((case.m, case.k), FP8), ((case.n, case.k), FP8), *more]
    given = [relax.Var(f"x{i}", relax.TensorType(*operand)) for i, operand in enumerate(operands)]
    block = relax.BlockBuilder()
    with block.function("main", given):
        with block.dataflow():
            value = block.emit_te(by_columns, *given[:2], primfunc_name_hint="sums", primfunc_attrs={"op_pattern": 4})
            result = block.emit_output(block.normalize(_finished(value, given[2:], case)))
        block.emit_func_output(result)
    return prim_func_of(block.get(), QUANTIZED_BY_CASTS)


def _finished(value: Any, rest: list[Any], case: Fp8Case) -> Any:
    from tvm import relax
    from tvm.relax import op

    if case.epilogue == "none":
        return value
    value = op.multiply(value, rest[0])
    if case.epilogue == "rows":
        value = op.multiply(value, rest[1])
    if case.epilogue.startswith("columns") or case.epilogue == "quantize":
        value = op.add(value, rest[1])
    if case.epilogue == "columns_gelu":
        value = op.nn.gelu(value)
    if case.epilogue == "columns_residual":
        value = op.add(value, op.astype(rest[2], "float32"))
    if case.epilogue == "quantize":
        return op.quantize(value, rest[2], relax.const(0, "int32"), axis=-1, out_dtype=FP8)
    return value if case.out == "float32" else op.astype(value, case.out)
