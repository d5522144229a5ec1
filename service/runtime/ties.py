"""Integers that rounding decides, such as an argmax over two equal scores.

Two right implementations of a model round differently, so their argmax may differ where two scores are as good as
equal. Such elements are found with the reference alone: they change when its inputs move by the tolerance of their
dtype, element by element, of which less than the tolerance is left in what comes out, as sums average it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relaxc.service.runtime.tolerances import TOLERANCES

__all__ = ["MOST_TIES", "ties_of"]

Array = np.ndarray[Any, Any]

MOST_TIES = 0.01
"""The share of an output that may be ties: of one that is noise, nothing would be compared."""

_RUNS = 8
"""A tie has even odds to change in a run: one in 256 is missed."""


def ties_of(
    reference: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    inputs: Mapping[str, Array],
    want: Mapping[str, Array],
    *,
    seed: int,
) -> dict[str, Array]:
    """Return output name → mask of the elements that are ties, for the integer and bool outputs of `want` that have
    any.

    Empty where no input is floating, as nothing can be moved then. An output with too many ties has none.
    """
    exact = [name for name, value in want.items() if str(value.dtype) not in TOLERANCES and value.size]
    floating = {name for name, value in inputs.items() if str(value.dtype) in TOLERANCES}
    if not exact or not floating:
        return {}
    rng = np.random.default_rng(seed)
    found = {name: np.zeros(want[name].shape, bool) for name in exact}
    for _ in range(_RUNS):
        moved = reference({name: _moved(v, rng) if name in floating else v for name, v in inputs.items()})
        for name in exact:
            found[name] |= moved[name] != want[name]
    return {name: mask for name, mask in found.items() if mask.any() and mask.mean() <= MOST_TIES}


def _moved(value: Array, rng: np.random.Generator) -> Array:
    noise = 1 + TOLERANCES[str(value.dtype)].error * rng.standard_normal(value.shape)
    return np.asarray(value.astype(np.float64) * noise, value.dtype)
