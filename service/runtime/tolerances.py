"""How far an output may be off: by its dtype, and by what rounding decides.

| dtype    | tolerance | cosine at least | why |
|----------|-----------|-----------------|-----|
| float64  | 1e-8      | 1 - 1e-12       | constants are often float32 in origin |
| float32  | 1e-4      | 1 - 1e-6        | a tanh GELU in place of an erf one is off by 3e-4 |
| float16  | 2e-2      | 1 - 1e-4        | 20 roundings of 2^-10, after tens of layers |
| bfloat16 | 1e-1      | 1 - 1e-3        | 25 roundings of 2^-8 |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "DEVIATIONS",
    "FAR_MARGIN",
    "FEW",
    "LEAST_COSINE",
    "LONE_MARGIN",
    "LOW",
    "MOST_SHARE",
    "MOVED_MARGIN",
    "TOLERANCES",
    "Moved",
    "Tolerance",
]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest scaled error, the smallest cosine, and the largest root mean square of errors that pass."""

    error: float
    cosine: float
    rms: float = math.inf


@dataclass(frozen=True, slots=True)
class Moved:
    """How far an output of the reference moves where rounding decides otherwise.

    Floats: the largest scaled error, the least cosine, and the root mean square of the errors. Quantized: the most
    `steps` of an element, and the `share` of elements that move at all.
    """

    error: float = 0.0
    cosine: float = 1.0
    rms: float = 0.0
    steps: float = 0.0
    share: float = 0.0


FAR_MARGIN = 1.1
"""How much further from what is not rounded than the reference in its runs an artifact may be."""

DEVIATIONS = 6.0
"""Of the spread of a figure over moved runs: one in 5e8 of a normal distribution is further off."""

FEW = 8.0
"""The spread of n figures may be too small by this over n: Student's distribution, roughly."""

MOVED_MARGIN = 2.0
"""How much further than the reference an output may be: a maximum over a few runs is not the largest there is."""

LONE_MARGIN = 1.25
"""How much further than any run from the middle the reference must be from what is not rounded to bound an artifact by
that alone: it is one draw, and what moves runs as far moves it."""

LEAST_COSINE, MOST_SHARE = 0.99, 0.25
"""An output of which more moves is noise, and judged as if nothing did: nothing would be compared."""

LOW = ("float16", "bfloat16")
"""Whose outputs round everywhere: no slice of them is judged by itself."""

TOLERANCES = {
    "float64": Tolerance(1e-8, 1 - 1e-12),
    "float32": Tolerance(1e-4, 1 - 1e-6),
    "float16": Tolerance(2e-2, 1 - 1e-4),
    "bfloat16": Tolerance(1e-1, 1 - 1e-3),
}
