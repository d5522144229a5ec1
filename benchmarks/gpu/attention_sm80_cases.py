"""The attention of `cuda.attention_sm80` that is checked and timed: as machine code, and as PTX for later GPUs."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.gpu import attention_cases
from benchmarks.gpu.attention_cases import AttentionCase, prim_func

__all__ = ["POINTS", "TIMED", "awkward", "prim_func"]

_RULE = "cuda.attention_sm80"
_ALL = [replace(case, rule=_RULE) for case in attention_cases.TIMED if case.parameters is None]
_LONG = AttentionCase(1, 16, 4096, 4096, 64, rule=_RULE, timed=True)
_WIDE = AttentionCase(4, 32, 2048, 2048, 128, rule=_RULE, timed=True)
_NAMES = ("rows", "warp", "block", "stages", "slices")
POINTS = {
    _LONG: ((128, 32, 64, 1, 1), (128, 32, 64, 2, 1), (128, 16, 64, 2, 1), (64, 32, 64, 2, 1), (128, 16, 128, 1, 1)),
    _WIDE: ((128, 32, 32, 2, 1), (128, 32, 64, 1, 1), (128, 16, 64, 1, 1), (64, 32, 48, 1, 1), (128, 32, 48, 2, 1)),
}
"""Rows, warp, block, stages and slices to compare with the default."""


def _at(point: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(_NAMES, point, strict=True))


TIMED: tuple[AttentionCase, ...] = (
    *(replace(case, target="cuda-sm80") for case in _ALL),
    *(replace(case, target="cuda-sm90") for case in _ALL if case.keys < 8192),
    *(
        replace(case, parameters=_at(point), target="cuda-sm80", causal=causal)
        for case, points in POINTS.items()
        for point in points
        for causal in (None, 0)
    ),
)


def awkward(count: int, seed: int) -> list[AttentionCase]:
    """Attention of odd sizes, with parameters all over the space; the same for the same seed."""
    draw = random.Random(seed)
    found = []
    for case in attention_cases.awkward(count, seed):
        few = draw.random() < 0.2
        queries = draw.choice((1, 2, 16, 17, 40)) if few and case.layout != "merged" else case.queries
        point = {
            "rows": draw.choice((16, 32, 64, 128)), "warp": draw.choice((16, 16, 32)),
            "block": draw.choice((16, 32, 48, 64, 96, 128)), "stages": draw.choice((1, 2)),
            "slices": draw.choice((1, 1, 2, 4, 8)),
        }  # fmt: skip
        target = draw.choice(("cuda-sm80", "cuda-sm90"))
        found.append(replace(case, rule=_RULE, queries=queries, parameters=point, target=target))
    return found
