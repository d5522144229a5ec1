"""The products that are checked and timed: of models and of odd shapes, and the PrimFunc of each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gpu.fused import prim_func_of

__all__ = ["AWKWARD", "EPILOGUES", "TIMED", "Case", "awkward", "prim_func"]

EPILOGUES = ("none", "scale", "relu", "bias", "bias_gelu", "bias_tanh_gelu", "bias_silu", "bias_residual", "low")


@dataclass(frozen=True)
class Case:
    """`batch` products of [m, k] with [k, n], or with [n, k] transposed where not `n_major`.

    `low` as an epilogue: bias and residual in the operands' dtype, which the passes round to before the residual is
    added. `out` is the result's dtype; no `parameters`: the template's own.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str = "float16"
    out: str = "float16"
    epilogue: str = "none"
    n_major: bool = True
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False
    open: bool = False
    """Whether the kernel knows its rows at the call alone."""

    @property
    def flops(self) -> int:
        """Operations of the product."""
        return 2 * self.batch * self.m * self.n * self.k


_SHAPES = [
    *((1, *mnk) for mnk in ((128, 3072, 768), (128, 768, 3072), (128, 768, 768), (128, 2304, 768))),  # BERT-base, 1
    *(
        (1, *mnk) for mnk in ((4096, 3072, 768), (4096, 768, 3072), (4096, 768, 768), (4096, 2304, 768))
    ),  # BERT-base, 32
    *((1, *mnk) for mnk in ((197, 3072, 768), (197, 768, 3072), (197, 768, 768), (197, 2304, 768))),  # ViT-B/16, 1
    *((1, *mnk) for mnk in ((6304, 3072, 768), (6304, 768, 3072), (6304, 768, 768), (6304, 2304, 768))),  # ViT-B/16, 32
    *((1, *mnk) for mnk in ((196, 768, 768), (6272, 768, 768), (1, 1000, 768), (32, 1000, 768))),  # its ends
    *((1, *mnk) for mnk in ((512, 4096, 1024), (1024, 1024, 1024), (4096, 4096, 1024), (4096, 4096, 4096))),
    (1, 8192, 8192, 8192),
    *((1, *mnk) for mnk in ((3136, 64, 64), (3136, 256, 64), (784, 512, 128), (196, 1024, 256))),  # ResNet-50
    *((1, *mnk) for mnk in ((1, 1000, 2048), (32, 1000, 2048))),
    *((64, *mnk) for mnk in ((512, 512, 64), (512, 64, 512))),  # attention
]

_TIMED = (
    *(Case(*shape) for shape in _SHAPES),
    *(Case(*shape, n_major=False) for shape in ((1, 4096, 4096, 4096), (1, 128, 3072, 768), (64, 512, 512, 64))),
    *(Case(*shape, dtype="bfloat16", out="bfloat16") for shape in ((1, 4096, 4096, 4096), (1, 1024, 1024, 1024))),
    *(Case(1, 4096, 4096, 1024, epilogue=each) for each in ("bias_gelu", "bias_tanh_gelu")),
    *(Case(1, 128, 3072, 768, epilogue=each) for each in ("bias_gelu", "bias_tanh_gelu")),
    *(Case(1, 512, 4096, 1024, epilogue=each) for each in ("bias_gelu", "bias_tanh_gelu")),
    *(Case(1, rows, 3072, 768, epilogue="bias_gelu") for rows in (197, 4096, 6304)),
    Case(1, 4096, 768, 3072, epilogue="bias_residual"),
)
# Beside the default tile, what might be faster with a costly epilogue: a parameter that is not named is the default's.
_POINTS: tuple[tuple[tuple[int, int, int], tuple[dict[str, int], ...]], ...] = (
    ((128, 3072, 768), ({"ahead": 1},)),
    ((512, 4096, 1024), ({"ahead": 1}, {"rows": 64, "columns": 128, "splits": 0})),
    (
        (4096, 4096, 1024),
        (
            {"cluster": 2},
            {"ahead": 1},
            {"rows": 128, "columns": 256, "splits": 1, "cluster": 2},
            {"rows": 128, "columns": 128, "splits": 0, "cluster": 2, "group": 4},
        ),
    ),
    ((4096, 768, 3072), ({"ahead": 1},)),
)
# Products whose tiles of 128 rows fill one wave of SMs and a part of another, where those of 192 may fill one.
_WIDE = {"rows": 192, "columns": 192, "splits": 1, "cluster": 1, "share": 1}
_NARROW = {"rows": 128, "columns": 192, "splits": 1, "cluster": 2, "share": 1}
_UNEVEN = ((6304, 768, 3072), (6304, 768, 768), (6304, 2304, 768), (6304, 3072, 768), (4096, 2304, 768))
_TIMED_POINTS = [
    *(
        replace(case, parameters=point)
        for mnk, points in _POINTS
        for point in points
        for case in _TIMED
        if (case.m, case.n, case.k) == mnk and case.epilogue != "none"
    ),
    *(Case(1, *mnk, parameters=point) for mnk in _UNEVEN for point in (_WIDE, {**_WIDE, "group": 4}, _NARROW)),
    *(Case(1, 6304, 3072, 768, epilogue="bias_gelu", parameters=point) for point in (_WIDE, _NARROW)),
]
TIMED: tuple[Case, ...] = tuple(replace(case, timed=True) for case in (*_TIMED, *_TIMED_POINTS))


def awkward(count: int, seed: int) -> list[Case]:
    """Products of odd sizes, with parameters all over the space; the same for the same seed.

    A parameter that the space of a shape does not list becomes the largest that it lists.
    """
    draw = random.Random(seed)
    spaces = list(itertools.product((64, 128), (64, 128, 192, 256), (1, 2), (0, 1, 2, 4), (1, 2), (4, 8, 16)))
    names = ("rows", "columns", "atoms", "splits", "cluster", "group")
    found = []
    for index in range(count):
        dtype = draw.choice(("float16", "float16", "bfloat16"))
        found.append(
            Case(
                batch=draw.choice((1, 1, 2, 3)),
                m=draw.choice((1, 7, 64, 65, 100, 128, 197, 333, 512)),
                n=8 * draw.choice((1, 3, 8, 9, 17, 32, 40, 63)),
                k=8 * draw.choice((1, 7, 8, 9, 24, 33, 100, 129)),
                dtype=dtype,
                out=draw.choice((dtype, dtype, "float32")),
                epilogue=draw.choice(EPILOGUES),
                n_major=draw.random() < 0.5,
                parameters=dict(zip(names, draw.choice(spaces), strict=True))
                | ({"ahead": 1} if index % 3 == 0 else {}),
            )
        )
    return found


# What went wrong once: columns of a split tile that are not in fours.
_SPLIT_192 = {"rows": 64, "columns": 192, "atoms": 1, "splits": 4, "cluster": 1, "group": 8}
AWKWARD: tuple[Case, ...] = (*awkward(40, 0), Case(2, 64, 136, 1032, epilogue="bias_silu", parameters=_SPLIT_192))


def prim_func(case: Case) -> Any:
    """The PrimFunc of `case` as the graph passes make it: the product, and what is fused with it."""
    from tvm import relax, tirx

    if case.open:
        case = replace(case, m=tirx.Var("m", "int64"))  # type: ignore[arg-type]
    shapes = [(case.batch, case.m, case.k), (case.batch, *((case.k, case.n) if case.n_major else (case.n, case.k)))]
    dtypes = [case.dtype, case.dtype]
    bias_dtype = case.dtype if case.epilogue == "low" else "float32"
    if case.epilogue.startswith("bias") or case.epilogue == "low":
        shapes, dtypes = [*shapes, (case.n,)], [*dtypes, bias_dtype]
    if case.epilogue in ("bias_residual", "low"):
        shapes, dtypes = [*shapes, (case.batch, case.m, case.n)], [*dtypes, case.dtype]
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, d)) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
    block = relax.BlockBuilder()
    with block.function("main", inputs):
        with block.dataflow():
            result = block.emit_output(block.normalize(_expression(case, block, inputs)))
        block.emit_func_output(result)
    return prim_func_of(block.get())


def _by_columns(a: Any, b: Any) -> Any:
    """The product with a right operand that is stored by columns."""
    from tvm import te, tirx

    k = te.reduce_axis((0, a.shape[2]), "k")
    return te.compute(
        (a.shape[0], a.shape[1], b.shape[1]),
        lambda i, m, n: te.sum(tirx.Cast("float32", a[i, m, k]) * tirx.Cast("float32", b[i, n, k]), axis=k),
        name="matmul",
    )


def _expression(case: Case, block: Any, inputs: list[Any]) -> Any:
    from tvm import relax
    from tvm.relax import op

    a, b, *rest = inputs
    value = op.matmul(a, b, out_dtype="float32") if case.n_major else block.emit_te(_by_columns, a, b)
    if case.epilogue == "scale":
        value = op.multiply(value, relax.const(0.125, "float32"))
    if case.epilogue == "relu":
        value = op.nn.relu(value)
    if rest:
        value = op.add(value, rest[0] if case.epilogue != "low" else op.astype(rest[0], "float32"))
    if case.epilogue == "bias_gelu":
        value = op.nn.gelu(value)
    if case.epilogue == "bias_tanh_gelu":
        value = op.nn.gelu_tanh(value)
    if case.epilogue == "bias_silu":
        value = op.nn.silu(value)
    if case.epilogue == "low":
        value = op.astype(op.astype(value, case.dtype), "float32")
    if case.epilogue in ("bias_residual", "low"):
        value = op.add(value, op.astype(rest[1], "float32"))
    return value if case.out == "float32" else op.astype(value, case.out)
