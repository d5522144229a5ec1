"""The products that are checked and timed: of models and of odd shapes, each with what is fused with it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ["AWKWARD", "EPILOGUES", "TIMED", "Case", "awkward"]

EPILOGUES = ("none", "scale", "relu", "bias", "bias_gelu", "bias_tanh_gelu", "bias_silu", "bias_residual", "low")


@dataclass(frozen=True)
class Case:
    """`batch` products of [m, k] with [k, n], or with [n, k] transposed where not `n_major`.

    `low` as an epilogue: bias and residual in the operands' dtype. `out` is the result's dtype; no `parameters`: the
    template's own.
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

    @property
    def flops(self) -> int:
        """Operations of the product."""
        return 2 * self.batch * self.m * self.n * self.k


_SHAPES = [
    *((1, *mnk) for mnk in ((128, 3072, 768), (128, 768, 3072), (128, 768, 768), (128, 2304, 768))),  # BERT-base, 1
    *((1, *mnk) for mnk in ((4096, 3072, 768), (4096, 768, 3072), (4096, 768, 768))),  # BERT-base, 32
    *((1, *mnk) for mnk in ((512, 4096, 1024), (1024, 1024, 1024), (4096, 4096, 1024), (4096, 4096, 4096))),
    (1, 8192, 8192, 8192),
    *((1, *mnk) for mnk in ((3136, 64, 64), (3136, 256, 64), (784, 512, 128), (196, 1024, 256), (1, 1000, 2048))),
    *((64, *mnk) for mnk in ((512, 512, 64), (512, 64, 512))),  # attention
]

_TIMED = (
    *(Case(*shape) for shape in _SHAPES),
    *(Case(*shape, n_major=False) for shape in ((1, 4096, 4096, 4096), (1, 128, 3072, 768), (64, 512, 512, 64))),
    *(Case(*shape, dtype="bfloat16", out="bfloat16") for shape in ((1, 4096, 4096, 4096), (1, 1024, 1024, 1024))),
    *(Case(1, 4096, 4096, 1024, epilogue=each) for each in ("bias_gelu", "bias_tanh_gelu")),
    *(Case(1, 128, 3072, 768, epilogue=each) for each in ("bias_gelu", "bias_tanh_gelu")),
    Case(1, 512, 4096, 1024, epilogue="bias_gelu"),
    Case(1, 4096, 768, 3072, epilogue="bias_residual"),
)
TIMED: tuple[Case, ...] = tuple(replace(case, timed=True) for case in _TIMED)


def awkward(count: int, seed: int) -> list[Case]:
    """Products of odd sizes, with parameters all over the space; the same for the same seed.

    A parameter that the space of a shape does not list becomes the largest that it lists.
    """
    draw = random.Random(seed)
    spaces = list(itertools.product((64, 128), (64, 128, 192, 256), (1, 2), (0, 1, 2, 4), (1, 2), (4, 8, 16)))
    names = ("rows", "columns", "atoms", "splits", "cluster", "group")
    found = []
    for _ in range(count):
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
                parameters=dict(zip(names, draw.choice(spaces), strict=True)),
            )
        )
    return found


# What went wrong once: columns of a split tile that are not in fours.
_SPLIT_192 = {"rows": 64, "columns": 192, "atoms": 1, "splits": 4, "cluster": 1, "group": 8}
AWKWARD: tuple[Case, ...] = (*awkward(40, 0), Case(2, 64, 136, 1032, epilogue="bias_silu", parameters=_SPLIT_192))
