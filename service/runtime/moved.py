"""How far the outputs of a model move where rounding decides otherwise.

In 16 bits every operand of a product is rounded, and what comes out is what exact arithmetic gives for operands that
are off by half a unit in their last place: Wilkinson's backward error (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, 1.5). How far that is from the reference is the model's own doing; it is found with the reference
alone, whose weights are moved by as much (`rounds_by`). Deep networks with random weights move by more than the
tolerance of their dtype, eager programs as well as ours.

Quantized models:

A value on a rounding boundary falls a step to either side, as the last digit of a float says, and what reads it is off
by that step. So two right implementations of a quantized network differ by more than floats do. How much is found with
the reference alone: what each of its quantizations rounds is moved by the tolerance of float32, each element by a
number of its own, so that what lies that near to a boundary falls a step to either side, and the steps of all
quantizations on the way propagate as the network does it. That is some hundred times what the rounding of floats
does, and so a bound for it. Where nothing but ONNX's rules decides, as in a single kernel of given operands, nothing is
moved, and integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from relaxc.service.runtime.measure import measure
from relaxc.service.runtime.scatter import Scatter, scatter_of
from relaxc.service.runtime.tolerances import TOLERANCES, Moved

__all__ = [
    "FIRST_RUNS",
    "MORE",
    "MOVED_BY",
    "RUNS",
    "Run",
    "moved_outputs",
    "quantizations_move_by",
    "rounds_by",
    "scattered_outputs",
]

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]

MOVED_BY = TOLERANCES["float32"].error
"""Of a value and of the mean size of its tensor: how far what is quantized is moved."""

RUNS = 4
"""With weights moved, each with other numbers."""

FIRST_RUNS = 2
"""With quantizations moved: what they bound is no more than more of them would."""

MORE = 7
"""Times as many of these again before an output is called wrong."""

_SUMS_BY = 2.0**-10
"""Tensor cores add products of 8-bit floats with about 14 bits; a sum of thousands is off by 2.4e-4 in norm."""


_ROUNDS_BY = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Half a unit for the weight, and half a one for what it is multiplied by."""


def rounds_by(judges: Iterable[str]) -> float:
    """Return how much of itself a weight is moved, for outputs that are judged as these dtypes; 0 but for 16 bits."""
    return max((_ROUNDS_BY.get(judge, 0.0) for judge in judges), default=0.0)


def quantizations_move_by(kind: str, stored: Iterable[str]) -> float:
    """Return by how much of itself what is quantized is moved: by as much as the sum may be off that it is.

    That is more where a GPU (`kind` is that of the target) multiplies 8-bit floats, one of the `stored` dtypes.
    """
    return _SUMS_BY if kind == "cuda" and "float8_e4m3fn" in stored else MOVED_BY


def moved_outputs(runs: Sequence[Mapping[str, Array]], want: Mapping[str, Array]) -> dict[str, Moved]:
    """Return output name → how far the `runs` of a moved reference are from `want` at most."""
    return {name: _farthest([run[name] for run in runs], value) for name, value in want.items()} if runs else {}


def scattered_outputs(
    runs: Sequence[Mapping[str, Array]], want: Mapping[str, Array], real: Mapping[str, Array] | None, *, alike: bool
) -> dict[str, Scatter]:
    """Return output name → how `want` and the `runs` scatter, and beside `real`, what is not rounded; of floats alone.

    Whether runs are `alike` a right build: see `scatter_of`.
    """
    floats = [name for name, value in want.items() if str(value.dtype) in TOLERANCES]
    exact = real or {}
    return {n: scatter_of(want[n], [run[n] for run in runs], exact.get(n), alike=alike) for n in floats}


def _farthest(runs: list[Array], want: Array) -> Moved:
    if str(want.dtype) in TOLERANCES:
        found = [measure(run, want) for run in runs]
        cosines = [each.cosine for each in found if each.cosine is not None]
        return Moved(
            error=max(each.max_scaled for each in found),
            cosine=min(cosines, default=1.0),
            rms=max(each.rms for each in found),
        )
    apart = [np.abs(run.astype(np.float64) - want) for run in runs]
    return Moved(
        steps=max(float(each.max(initial=0.0)) for each in apart),
        share=max(float((each > 0).mean()) if each.size else 0.0 for each in apart),
    )
