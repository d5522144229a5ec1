"""Norms, softmaxes, elementwise functions and transpositions: what memory's speed bounds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gpu.fused import one_prim_func_of

__all__ = ["TIMED", "RowsCase", "awkward", "prim_func"]

KINDS = ("layer_norm", "rms_norm", "softmax", "amax", "gelu", "add", "transpose")


@dataclass(frozen=True)
class RowsCase:
    """`kind` over the last axis of `shape`, from `dtype` to `out`; `amax` is the largest absolute value of each row.

    `before` is what goes into the sums besides the row: `none`, a `residual` of 16 bits, or a `scale` for each column.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    out: str = "float16"
    before: str = "none"
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False
    target: str = "cuda-sm90"
    """Of `cuda-sm80` an H100 takes the PTX."""
    open: tuple[int, ...] = ()
    """Sizes that the kernel knows at the call alone."""

    @property
    def rule(self) -> str:
        """The template that is meant; '' for the first that takes it."""
        return "cuda.rows" if self.kind in ("layer_norm", "rms_norm", "softmax", "amax") else ""


def prim_func(case: RowsCase) -> Any:
    """One PrimFunc of all that `case` computes."""
    from relaxc.service.passes.legalize.legalize_norms import NORMS

    given = _operands(case)
    names = [name for name, *_ in given]
    return one_prim_func_of(
        given, lambda _, values: _value(case, dict(zip(names, values, strict=True))), case.open, NORMS
    )


def _operands(case: RowsCase) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of the rows, another tensor of their shape, and vectors for the columns."""
    found = [("x", case.shape, case.dtype)]
    if case.before == "residual" or case.kind == "add":
        found.append(("r", case.shape, "float16"))
    vectors: tuple[str, ...] = {"layer_norm": ("gamma", "beta"), "rms_norm": ("gamma",)}.get(case.kind, ())
    vectors += ("scale",) if case.before == "scale" else ()
    return found + [(name, case.shape[-1:], "float32") for name in vectors]


def _value(case: RowsCase, given: Mapping[str, Any]) -> Any:
    from tvm.relax import op

    x = given["x"]
    if case.kind == "transpose":
        axes = list(range(len(case.shape)))
        return op.permute_dims(x, [*axes[:-2], axes[-1], axes[-2]])
    value = x if case.dtype == "float32" else op.astype(x, "float32")
    value = op.add(value, op.astype(given["r"], "float32")) if "r" in given else value
    value = op.multiply(value, given["scale"]) if "scale" in given else value
    if case.kind == "layer_norm":
        value = op.nn.layer_norm(value, given["gamma"], given["beta"], axes=[-1], epsilon=1e-5)
    elif case.kind == "rms_norm":
        value = op.nn.rms_norm(value, given["gamma"], axes=[-1], epsilon=1e-5)
    elif case.kind == "softmax":
        value = op.nn.softmax(value, -1)
    elif case.kind == "amax":
        value = op.max(op.abs(value), -1, keepdims=True)
    elif case.kind == "gelu":
        value = op.nn.gelu(value)
    return value if case.out == "float32" else op.astype(value, case.out)


_NORMED = (
    *(RowsCase("layer_norm", (batch, rows, 768)) for batch, rows in ((1, 128), (32, 128), (32, 197), (1, 512))),
    RowsCase("rms_norm", (1, 512, 2048)), RowsCase("rms_norm", (32, 512, 2048)),
    RowsCase("softmax", (32, 12, 128, 128)), RowsCase("softmax", (4, 12, 512, 512)),
    RowsCase("amax", (4096, 4096), "float16", "float32"), RowsCase("amax", (128, 4096), "float16", "float32"),
)  # fmt: skip
_MOVED = tuple(
    RowsCase(kind, shape, "float16")
    for kind, shape in (
        ("gelu", (4096, 3072)), ("add", (4096, 3072)), ("transpose", (4096, 4096)), ("transpose", (32, 12, 128, 64)),
        ("gelu", (128, 3072)),
    )
)  # fmt: skip
_LARGE = ("layer_norm", "rms_norm", "softmax")
_MORE = (
    *(RowsCase(kind, (32, 128, 768), "float16") for kind in _LARGE),
    RowsCase("rms_norm", (32, 512, 2048), "bfloat16", "bfloat16"),
    *(RowsCase(kind, (32, 128, 768), before=before) for kind in _LARGE for before in ("residual", "scale")),
)
_POINTS: dict[RowsCase, tuple[tuple[int, int, int], ...]] = {
    RowsCase("layer_norm", (32, 128, 768)): (
        (32, 1, 8), (32, 2, 4), (32, 2, 2), (64, 1, 2), (64, 2, 2), (96, 1, 1), (96, 2, 2),
    ),
    RowsCase("layer_norm", (32, 197, 768)): ((32, 2, 4), (64, 1, 2), (64, 2, 2)),
    RowsCase("layer_norm", (1, 512, 768)): ((32, 1, 4), (64, 1, 2), (96, 1, 1), (192, 1, 1), (192, 1, 4)),
    RowsCase("layer_norm", (1, 128, 768)): ((32, 1, 1), (32, 1, 4), (64, 1, 1), (64, 1, 2), (192, 1, 1)),
    RowsCase("rms_norm", (32, 512, 2048)): ((32, 1, 4), (128, 1, 1), (256, 1, 1)),
    RowsCase("rms_norm", (1, 512, 2048)): ((128, 1, 1), (512, 1, 1)),
    RowsCase("softmax", (32, 12, 128, 128)): ((16, 2, 8), (32, 2, 4), (32, 4, 8), (32, 1, 8)),
    RowsCase("softmax", (4, 12, 512, 512)): ((32, 2, 4), (64, 2, 2)),
    RowsCase("layer_norm", (32, 128, 768), "float16"): ((32, 2, 4), (64, 2, 2)),
}  # fmt: skip
"""Threads, each and rows to compare with the default."""
_TRIED = tuple(
    replace(case, parameters=dict(zip(("threads", "each", "rows"), point, strict=True)))
    for case, points in _POINTS.items()
    for point in points
)
_OLDER = tuple(replace(case, target="cuda-sm80") for case in (*_NORMED, *_MOVED, *_MORE))
TIMED: tuple[RowsCase, ...] = tuple(replace(case, timed=True) for case in (*_NORMED, *_MOVED, *_MORE, *_TRIED, *_OLDER))

_VECTORS = (1, 3, 5, 16, 33, 96, 125, 256, 1000)


def awkward(count: int, seed: int) -> list[RowsCase]:
    """Rows of odd sizes, with parameters all over the space; the same for the same seed."""
    draw = random.Random(seed)
    return [
        RowsCase(
            kind := draw.choice((*_LARGE, "amax")),
            (draw.choice((1, 2, 3)), draw.choice((1, 5, 37, 133)), 8 * draw.choice(_VECTORS)),
            dtype=draw.choice(("float32", "float32", "float16", "bfloat16")),
            out=draw.choice(("float16", "bfloat16", "float32")),
            before=draw.choice(("none", "none", "residual", "none" if kind == "amax" else "scale")),
            parameters={
                "threads": draw.choice((8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)),
                "each": draw.choice((1, 2, 4)),
                "rows": draw.choice((1, 2, 4, 8)),
            },
            target=draw.choice(("cuda-sm80", "cuda-sm90")),
        )
        for _ in range(count)
    ]
