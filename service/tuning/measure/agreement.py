"""Whether two outputs in 16 bits agree beyond doubt, in a fraction of the time that it takes to say how well."""

from __future__ import annotations

import math

import numpy as np

from relaxc.service.runtime.measure import FLOOR, OUTLIER
from relaxc.service.runtime.tensors import Array
from relaxc.service.runtime.tolerances import TOLERANCES

__all__ = ["agree"]

_DTYPES = ("float16", "bfloat16")
_CHUNK = 1 << 18
"""Elements at a time: the arithmetic stays in the cache."""
_SAMPLED = 1 << 16
_SPREAD = OUTLIER / 10
"""The largest element over the sampled median, up to which none is an outlier of the comparison."""
_SURE = 0.8
"""Of the tolerance: what arithmetic in float32 and a sampled median may be off is far less than the rest."""


def agree(got: Array, want: Array, judge: str) -> bool:
    """Return True where `runtime.compare` would let `got` pass by the tolerance of `judge`; False is no verdict."""
    if judge not in _DTYPES or {str(got.dtype), str(want.dtype)} - {*_DTYPES, "float32"} or not want.size:
        return False
    mine, theirs = got.reshape(-1), want.reshape(-1)
    parts = [slice(start, start + _CHUNK) for start in range(0, theirs.size, _CHUNK)]
    scale = _scale(theirs, parts)
    if scale is None:
        return False
    limit, dot, squares, wanted = _SURE * TOLERANCES[judge].error, 0.0, 0.0, 0.0
    for part in parts:
        a, b = mine[part].astype(np.float32), theirs[part].astype(np.float32)
        if not (np.abs(a - b) <= limit * (np.abs(b) + scale)).all():  # nor where one is NaN
            return False
        dot, squares, wanted = dot + float(a @ b), squares + float(a @ a), wanted + float(b @ b)
    apart = 1 - dot / math.sqrt(squares * wanted) if squares * wanted > 0 else 1.0
    return bool(apart <= _SURE * (1 - TOLERANCES[judge].cosine))


def _scale(want: Array, parts: list[slice]) -> float | None:
    """The root mean square, 0 where it is that small; None where an element is not finite, or may be an outlier."""
    largest = squares = 0.0
    for part in parts:
        b = np.abs(want[part].astype(np.float32))
        largest = max(largest, float(b.max())) if np.isfinite(b).all() else math.inf
        squares += float(b @ b)
    sample = np.abs(want[:: max(1, want.size // _SAMPLED)].astype(np.float32))
    sample = sample[sample > 0]
    if not sample.size or not largest <= _SPREAD * float(np.median(sample)):
        return None
    return math.sqrt(squares / want.size) if squares > FLOOR**2 * want.size else None
