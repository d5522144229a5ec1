"""The products of `cuda.gemm_sm80` that are checked and timed: as machine code, and as PTX for later GPUs."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from benchmarks.gpu import gemm_cases
from benchmarks.gpu.gemm_cases import EPILOGUES, Case, prim_func

__all__ = ["POINTS", "TIMED", "WarpCase", "awkward", "prim_func"]


@dataclass(frozen=True)
class WarpCase(Case):
    """A product by the template `rule`. Of the target `cuda-sm80` an H100 takes the PTX."""

    rule: str = "cuda.gemm_sm80"
    target: str = "cuda-sm90"


def _of(case: Case, **changes: object) -> WarpCase:
    return replace(WarpCase(**{**vars(case), "parameters": None}), **changes)  # type: ignore[arg-type]


_ALIGNED = [case for case in gemm_cases.TIMED if case.parameters is None and case.m > 1]
_RAGGED = [Case(1, *mnk, timed=True) for mnk in ((1024, 1000, 1030), (512, 1001, 1024), (333, 50257, 768))]
TIMED: tuple[WarpCase, ...] = (
    *(_of(case) for case in (*_ALIGNED, *_RAGGED)),
    *(_of(case, target="cuda-sm80") for case in _ALIGNED[:12]),
)


# Rows, columns, depth, stages, slices and columns of a warp; measuring has no templates to ask for them.
_NAMES = ("rows", "columns", "depth", "stages", "slices", "warp")
POINTS = (
    *((128, 256, 32, 3, 1, 64), (128, 128, 32, 3, 1, 64), (128, 128, 64, 3, 1, 64), (128, 128, 64, 2, 1, 32)),
    *((128, 64, 32, 4, 1, 32), (128, 64, 64, 3, 2, 32), (128, 64, 32, 3, 1, 64), (128, 32, 32, 4, 1, 32)),
    *((128, 32, 64, 3, 4, 32), (64, 256, 32, 4, 1, 64), (64, 128, 32, 2, 2, 64), (64, 128, 64, 3, 1, 32)),
    *((64, 128, 64, 3, 4, 64), (64, 64, 64, 4, 2, 32), (64, 64, 32, 4, 2, 64), (64, 64, 32, 3, 1, 32)),
    *((64, 32, 64, 4, 4, 32), (32, 256, 32, 3, 1, 64), (32, 128, 64, 4, 2, 32), (32, 64, 64, 4, 4, 32)),
    *((32, 64, 32, 3, 2, 64), (32, 64, 64, 4, 4, 64), (32, 32, 64, 2, 4, 32), (32, 32, 32, 4, 2, 32)),
)


def awkward(count: int, seed: int) -> list[WarpCase]:
    """Products of odd sizes, with parameters all over the space; the same for the same seed."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        dtype, point = draw.choice(("float16", "float16", "bfloat16")), draw.choice(POINTS)
        step = draw.choice((1, 2, 4, 8, 8, 8))
        found.append(
            WarpCase(
                batch=draw.choice((1, 1, 2, 3)),
                m=draw.choice((1, 7, 31, 64, 65, 100, 128, 197, 333, 512)),
                n=max(2, step * draw.choice((1, 3, 9, 17, 33, 40, 63))),
                k=step * draw.choice((1, 7, 8, 9, 33, 100, 129)),
                dtype=dtype,
                out=draw.choice((dtype, dtype, "float32")),
                epilogue=draw.choice([each for each in EPILOGUES if each != "low"]),
                n_major=draw.random() < 0.5,
                parameters=dict(zip(_NAMES, point, strict=True)),
                target=draw.choice(("cuda-sm80", "cuda-sm90")),
            )
        )
    return found
