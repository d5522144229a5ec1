"""How far the outputs of a model move where rounding decides otherwise.

In 16 bits every operand of a product is rounded, and what comes out is what exact arithmetic gives for operands that
are off by half a unit in their last place: Wilkinson's backward error (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, 1.5). How far that is from the reference is the model's own doing; it is found with the reference
alone, whose weights are moved by as much (`rounds_by`). Deep networks with random weights move by more than the
tolerance of their dtype, eager programs as well as ours.

Quantized models:

A value on a rounding boundary falls a step to either side, as the last digit of a float says, and what reads it is off
by that step. So two right implementations of a quantized network differ by more than floats do. How much is found with
the reference alone: its quantizations are moved by the tolerance of float32, so that what lies that near to a boundary
falls to its other side. That is some hundred times what the rounding of floats does, and so a bound for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from service.runtime.compare import TOLERANCES, Moved
from service.runtime.measure import measure

__all__ = ["MOVED_BY", "RUNS", "moved_outputs", "rounds_by"]

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]

MOVED_BY = TOLERANCES["float32"].error
"""Of its scale: how far a quantization is moved."""

RUNS = 4
"""Each with other directions."""


_ROUNDS_BY = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Half a unit for the weight, and half a one for what it is multiplied by."""


def rounds_by(judges: Iterable[str]) -> float:
    """Return how much of itself a weight is moved, for outputs that are judged as these dtypes; 0 but for 16 bits."""
    return max((_ROUNDS_BY.get(judge, 0.0) for judge in judges), default=0.0)


def moved_outputs(
    references: Iterable[Run], inputs: Mapping[str, Array], want: Mapping[str, Array]
) -> dict[str, Moved]:
    """Return output name → how far the `references`, each moved, are from `want` at most."""
    runs = [run(inputs) for run in references]
    return {name: _farthest([run[name] for run in runs], value) for name, value in want.items()} if runs else {}


def _farthest(runs: list[Array], want: Array) -> Moved:
    if str(want.dtype) in TOLERANCES:
        found = [measure(run, want) for run in runs]
        cosines = [each.cosine for each in found if each.cosine is not None]
        return Moved(error=max(each.max_scaled for each in found), cosine=min(cosines, default=1.0))
    apart = [np.abs(run.astype(np.float64) - want) for run in runs]
    return Moved(
        steps=max(float(each.max(initial=0.0)) for each in apart),
        share=max(float((each > 0).mean()) if each.size else 0.0 for each in apart),
    )
