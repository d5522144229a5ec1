"""The convolutions of `cuda.conv2d_sm80` that are checked and timed: as machine code, and as PTX for later GPUs."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.gpu import conv_cases, gemm_sm80_cases
from benchmarks.gpu.conv_cases import ConvCase, prim_func

__all__ = ["TIMED", "awkward", "prim_func"]

_RULE = "cuda.conv2d_sm80"
_DENSE = [
    replace(case, rule=_RULE) for case in conv_cases.TIMED if case.kind in ("taps", "rows") and case.parameters is None
]
_NAMES = ("rows", "columns", "depth", "stages", "slices", "warp")
TIMED: tuple[ConvCase, ...] = tuple(
    replace(case, target=target) for target in ("cuda-sm80", "cuda-sm90") for case in _DENSE
)


def awkward(count: int, seed: int) -> list[ConvCase]:
    """Convolutions of odd sizes, strides, dilations and paddings, with parameters all over the space."""
    draw = random.Random(seed)
    found = []
    for case in conv_cases.awkward(3 * count, seed):
        if case.kind != "taps" or len(found) == count:
            continue
        if draw.random() < 0.2:  # rows of taps, as a network's first has them
            deep, size = draw.choice((8, 16, 24)), draw.choice(((7, 7), (3, 3), (5, 2)))
            case = replace(
                case, kind="rows", image=(*case.image[:2], case.image[2] + 8, deep), kernel=size, dilation=(1, 1),
                padding=(draw.choice((0, 1, 3)), 0, draw.choice((0, 1, 3)), 0),
            )  # fmt: skip
        point = dict(zip(_NAMES, draw.choice(gemm_sm80_cases.POINTS), strict=True))
        target = draw.choice(("cuda-sm80", "cuda-sm90"))
        if min(case.size) > 0:
            found.append(replace(case, rule=_RULE, parameters=point, target=target))
    return found
