"""The products of bytes that are checked and timed: what the passes make of a quantized model's linear layers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gpu.fused import prim_func_of

__all__ = ["EPILOGUES", "TIMED", "BytesCase", "awkward", "fused", "out_of", "prim_func"]

EPILOGUES = ("none", "zero", "scale", "scale_gelu", "scale_residual", "quantize", "quantize_relu")


@dataclass(frozen=True)
class BytesCase:
    """[m, k] of the dtype `left` by [n, k] int8 by columns, summed in int32.

    Epilogues: `zero` takes a left zero point's share off; `scale` makes floats, by a scale a column, and adds a bias;
    `quantize` makes bytes of these. `out` is the result's dtype; no `parameters`: the template's own.
    """

    m: int
    n: int
    k: int
    left: str = "uint8"
    out: str = "float16"
    epilogue: str = "scale"
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False


_SHAPES = (
    *((128, 3072, 768), (128, 768, 3072), (128, 768, 768), (4096, 3072, 768), (4096, 768, 3072), (4096, 768, 768)),
    *((1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (3136, 256, 64), (196, 1024, 256)),
)
_PLAIN = tuple(BytesCase(*mnk, left="int8", out="int32", epilogue="none") for mnk in _SHAPES)
_FUSED = tuple(
    BytesCase(*mnk, out="uint8" if epilogue.startswith("quantize") else "float16", epilogue=epilogue)
    for mnk in ((4096, 3072, 768), (4096, 768, 3072), (128, 3072, 768))
    for epilogue in ("scale", "scale_gelu", "scale_residual", "quantize")
)
TIMED = tuple(replace(case, timed=True) for case in (*_PLAIN, *_FUSED))

_NAMES = ("rows", "columns", "atoms", "splits", "cluster", "group", "ahead", "share")
_SPACES = tuple(
    itertools.product(
        *((64, 128, 192), (64, 128, 192, 256), (1, 2), (0, 1, 2, 4)), *((1, 2), (4, 8, 16), (0, 1), (1, 2))
    )
)


def out_of(draw: random.Random, epilogue: str) -> str:
    """Return a dtype that a result of this epilogue may have."""
    if epilogue in ("none", "zero"):
        return "int32"
    return draw.choice(("int8", "uint8") if epilogue.startswith("quantize") else ("float16", "bfloat16", "float32"))


def awkward(count: int, seed: int) -> list[BytesCase]:
    """Products of odd sizes, with parameters all over the space; the same for the same seed."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        epilogue = draw.choice(EPILOGUES)
        found.append(
            BytesCase(
                m=draw.choice((1, 7, 64, 65, 100, 128, 197, 333, 512)),
                n=8 * draw.choice((1, 3, 8, 9, 17, 32, 40, 63)),
                k=16 * draw.choice((1, 7, 8, 9, 24, 33, 100, 129)),
                left=draw.choice(("int8", "uint8")),
                out=out_of(draw, epilogue),
                epilogue=epilogue,
                parameters=dict(zip(_NAMES, draw.choice(_SPACES), strict=True)),
            )
        )
    return found


Operand = tuple[tuple[int, ...], str]


def prim_func(case: BytesCase) -> Any:
    """Return the PrimFunc of `case` as the graph passes make it: the product, and what is fused with it."""
    from relaxc.schedules.cuda.gemm.compute import by_columns

    operands: list[Operand] = [((case.m, case.k), case.left), ((case.n, case.k), "int8")]
    return fused(operands, by_columns, (case.m, case.n), case.epilogue, case.out)


def fused(operands: list[Operand], sums: Any, shape: tuple[int, ...], epilogue: str, out: str) -> Any:
    """Return the PrimFunc of what `sums` makes of two `operands`, a result of `shape`, and of what is fused with it."""
    from tvm import relax

    from relaxc.service.passes.legalize.legalize_quantized import QUANTIZED

    columns = shape[-1:]
    more: list[Operand] = [(columns, "int32")] if epilogue == "zero" else []
    if epilogue.startswith(("scale", "quantize")):
        more += [(columns, "float32"), (columns, "float32")]
    if "residual" in epilogue:
        more.append((shape, out))
    if epilogue.startswith("quantize"):
        more += [((), "float32"), ((), out)]
    given = [relax.Var(f"x{i}", relax.TensorType(*operand)) for i, operand in enumerate([*operands, *more])]
    block = relax.BlockBuilder()
    with block.function("main", given):
        with block.dataflow():
            value = block.emit_te(sums, *given[:2], primfunc_name_hint="sums", primfunc_attrs={"op_pattern": 4})
            result = block.emit_output(block.normalize(_finished(value, given[2:], epilogue, out)))
        block.emit_func_output(result)
    return prim_func_of(block.get(), QUANTIZED)


def _finished(value: Any, rest: list[Any], epilogue: str, out: str) -> Any:
    from tvm.relax import op

    if epilogue == "none":
        return value
    if epilogue == "zero":
        return op.subtract(value, rest[0])
    value = op.add(op.multiply(op.astype(value, "float32"), rest[0]), rest[1])
    if epilogue == "scale_gelu":
        value = op.nn.gelu(value)
    if epilogue == "scale_residual":
        value = op.add(value, op.astype(rest[2], "float32"))
    if epilogue == "quantize_relu":
        value = op.nn.relu(value)
    if not epilogue.startswith("quantize"):
        return value if out == "float32" else op.astype(value, out)
    return op.quantize(value, *rest[2:], axis=-1, out_dtype=out)
