"""Whether an artifact's outputs are the reference's: per output, by a tolerance that its dtype sets (`tolerances`).

An element's error is scaled by its own size and by that of its tensor, outliers left out:
|got - want| / (|want| + rms(want)). So a value near zero among ordinary ones is judged as its neighbours are, and a
tensor of small values as strictly as one of large ones. An output passes when its largest scaled error is within the
tolerance, and its direction, the cosine with the reference, within the bound beside it: that finds errors that are
small in every element and large in all.

Integers, bools and floats of 8 and 4 bits must be equal, but where the caller says that rounding decides
(`runtime.ties`). Outputs of a quantized model, or of one in 16 bits, may be off by what the reference itself moves
(`runtime.moved`), and no further; those of a quantized one are held against the middle of the reference's runs
(`runtime.scatter`).
NaN and infinities must be where the reference has them, with its sign; a NaN everywhere compares nothing and fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from relaxc.service.request import Precision
from relaxc.service.runtime.measure import Measured, measure
from relaxc.service.runtime.scatter import Scatter
from relaxc.service.runtime.tolerances import (
    LEAST_COSINE,
    MOST_SHARE,
    MOVED_MARGIN,
    TOLERANCES,
    Moved,
    Tolerance,
)
from relaxc.service.runtime.verification import OutputReport, Verification
from relaxc.service.signature import Signature, TensorSpec

__all__ = ["compare", "judging_dtypes"]

Array = np.ndarray[Any, Any]

_DIGITS = 3

_ROUNDINGS = "the root mean square {:.3g} of the errors is over what roundings may cause, {:.3g}"

_QUANTIZED = ("int8", "uint8", "int16", "uint16")

EMPTY = "nothing"
"""What judges an output that has no elements in any call."""

_COARSENESS = ("float64", "float32", "float16", "bfloat16")


def judging_dtypes(
    signature: Signature, *, precision: Precision | None = None, weights: Iterable[TensorSpec] = ()
) -> dict[str, str]:
    """Return output name → the dtype whose tolerance judges it: the coarsest float on the way to it.

    That is the coarsest of its own, the inputs', the state's, the weights' and `precision`; integers keep their own.
    One that has no elements in any call is judged by none, EMPTY.
    """
    used = {spec.dtype for spec in (*signature.inputs, *signature.state, *weights)}
    used |= {precision.judged} if precision else set()

    def judging(spec: TensorSpec) -> str:
        if 0 in spec.shape:
            return EMPTY
        return _coarsest({spec.dtype, *used}) if _is_float(spec.dtype) else spec.dtype

    return {spec.name: judging(spec) for spec in signature.outputs}


def _is_float(dtype: str) -> bool:
    return dtype in _COARSENESS


def _coarsest(dtypes: Iterable[str]) -> str:
    return max(filter(_is_float, dtypes), key=_COARSENESS.index)


def compare(
    got: Mapping[str, Array],
    want: Mapping[str, Array],
    dtypes: Mapping[str, str] | None = None,
    ties: Mapping[str, Array] | None = None,
    moved: Mapping[str, Moved] | None = None,
    scatter: Mapping[str, Scatter] | None = None,
) -> Verification:
    """Compare an artifact's outputs with the reference's.

    `dtypes` maps an output to the dtype whose tolerance judges it (see `judging_dtypes`), by default the
    reference's own; `ties` an integer output to a mask of elements that may differ, `moved` an output to how far it may
    be off, and `scatter` to what it is near to then. Names, dtypes and shapes must be equal. Nothing to compare at all,
    of values that are NaN on both sides or none, is a failure, but where no call would give anything.
    """
    if got.keys() != want.keys():
        lacking, extra = sorted(want.keys() - got.keys()), sorted(got.keys() - want.keys())
        return Verification(False, f"outputs differ: {lacking} are missing, {extra} are too many", ())
    rows = tuple(
        _compare_output(
            name,
            got[name],
            want[name],
            (dtypes or {}).get(name),
            (ties or {}).get(name),
            (moved or {}).get(name),
            (scatter or {}).get(name),
        )
        for name in want
    )
    failed = [f"{row.name}: {row.reason}" for row in rows if not row.passed]
    never = bool(rows) and all((dtypes or {}).get(row.name) == EMPTY for row in rows)
    if not failed and not never and not any(row.compared for row in rows):
        failed = ["nothing was compared: every output is empty, or NaN on both sides"]
    return Verification(not failed, "; ".join(failed), rows)


def _compare_output(
    name: str,
    got: Array,
    want: Array,
    judge: str | None,
    ties: Array | None,
    moved: Moved | None,
    scatter: Scatter | None,
) -> OutputReport:
    dtype, shape = str(want.dtype), list(want.shape)
    if str(got.dtype) != dtype or got.shape != want.shape:
        reason = f"it is {got.dtype}{list(got.shape)}, the reference {dtype}{shape}"
        return OutputReport(name, dtype, shape, False, reason, 0)
    if _is_float(dtype):
        tolerance = TOLERANCES[judge if judge in TOLERANCES else dtype]
        row = _compare_floats(name, got, want, tolerance)
        if row.passed or moved is None or moved.cosine < LEAST_COSINE:
            return row
        return _compare_moved(name, got, want, tolerance, moved, scatter)
    row = _compare_exactly(name, got, want, ties)
    return row if row.passed or moved is None or dtype not in _QUANTIZED else _compare_steps(row, got, want, moved)


def _compare_moved(
    name: str, got: Array, want: Array, tolerance: Tolerance, moved: Moved, scatter: Scatter | None
) -> OutputReport:
    """Judge by what rounding may do to an output: all of it by how right builds scatter, where that is known. One
    element may be a step off, which is more than that.
    """
    error = _rounded(MOVED_MARGIN * moved.error, up=True) or 0.0
    cosine = 1 - MOVED_MARGIN**2 * (1 - moved.cosine)  # one minus it grows with the square of the error
    bound = max(tolerance.error, MOVED_MARGIN * moved.rms if scatter is None else scatter.bound)
    wider = Tolerance(
        max(tolerance.error, error), min(tolerance.cosine, cosine), bound if scatter is None else math.inf
    )
    row = replace(_compare_floats(name, got, want, wider), moved=True, bound=_rounded(bound))
    if scatter is None:
        return row
    near, far = scatter.distances(got)
    row = replace(row, rms_error=_rounded(near))
    if not row.passed:
        return row
    reason = ""
    if not near <= bound:
        reason = _ROUNDINGS.format(near, bound)
    elif not far <= max(tolerance.error, scatter.far):
        reason = f"it is off by {far:.3g} from what is not rounded, the reference in its runs by {scatter.far:.3g}"
    return replace(row, passed=not reason, reason=reason)


def _compare_steps(row: OutputReport, got: Array, want: Array, moved: Moved) -> OutputReport:
    """`row`, which failed, as passed where no more elements are off, and by no more steps, than the margin allows."""
    apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
    share, steps = float((apart > 0).mean()), float(apart.max(initial=0.0))
    if moved.share > MOST_SHARE or share > MOVED_MARGIN * moved.share or steps > MOVED_MARGIN * moved.steps:
        return row
    return replace(row, passed=True, reason="", first_mismatch=None, ties=int((apart > 0).sum()), moved=True)


def _compare_exactly(name: str, got: Array, want: Array, ties: Array | None) -> OutputReport:
    differ = (got != want) & ~((got != got) & (want != want))  # 8-bit floats may be NaN
    wrong = differ if ties is None else differ & ~ties
    count, dtype, shape = int(np.count_nonzero(wrong)), str(want.dtype), list(want.shape)
    if not count:
        tied = int(np.count_nonzero(differ))
        return OutputReport(
            name, dtype, shape, True, "", want.size - tied, 0.0, 0.0, 0.0, passing_tolerance=0.0, ties=tied
        )
    largest = np.abs(got[wrong].astype(np.float64) - want[wrong].astype(np.float64)).max()
    reason = f"{count} of {want.size} {dtype} values differ; they must be equal"
    return OutputReport(name, dtype, shape, False, reason, want.size, float(largest), first_mismatch=_first(wrong))


def _compare_floats(name: str, got: Array, want: Array, tolerance: Tolerance) -> OutputReport:
    found = measure(got, want)
    shape, dtype = list(want.shape), str(want.dtype)
    reason = _verdict(found, tolerance, want.size)
    bounded = math.isfinite(tolerance.rms)
    bad = found.mismatched if found.mismatches else found.scaled > tolerance.error
    aligned = found.cosine is None or found.cosine >= tolerance.cosine
    passable = not found.mismatches and found.finite + found.infinite > 0 and aligned
    return OutputReport(
        name,
        dtype,
        shape,
        passed=not reason,
        reason=reason,
        compared=found.finite + found.infinite,
        max_abs_error=_rounded(found.max_abs),
        max_rel_error=_rounded(found.max_rel),
        scaled_error=_rounded(found.max_scaled),
        cosine=None if found.cosine is None else round(found.cosine, 9),
        nonfinite=found.nonfinite,
        nonfinite_mismatches=found.mismatches,
        first_mismatch=_first(bad) if reason else None,
        tolerance=tolerance.error,
        rms_error=_rounded(found.rms) if bounded else None,
        passing_tolerance=_rounded(found.max_scaled, up=True) if passable or not want.size else None,
    )


def _verdict(found: Measured, tolerance: Tolerance, size: int) -> str:
    """Why an output fails, or nothing."""
    if not size:
        return ""
    if found.mismatches:
        return f"{found.mismatches} of {size} values are NaN or infinite on one side only, or differ in sign"
    if not found.finite and not found.infinite:  # NaN on both sides
        return ""
    if not found.max_scaled <= tolerance.error:
        return f"scaled error {found.max_scaled:.3g} is over the tolerance {tolerance.error:.3g}"
    if found.cosine is not None and not found.cosine >= tolerance.cosine:
        return f"the cosine {found.cosine:.9f} with the reference is under {tolerance.cosine:.9f}"
    if not found.rms <= tolerance.rms:
        return _ROUNDINGS.format(found.rms, tolerance.rms)
    return ""


def _first(wrong: Array) -> list[int] | None:
    return [int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape)] if wrong.any() else None


def _rounded(value: float, *, up: bool = False) -> float | None:
    """The value to three significant digits, rounded up where asked; None for what JSON has no number for."""
    if not math.isfinite(value):
        return None
    if value == 0:
        return 0.0
    nearest = float(f"{value:.{_DIGITS - 1}e}")
    if up and nearest < value:
        return float(f"{nearest + 10.0 ** (math.floor(math.log10(value)) - _DIGITS + 1):.{_DIGITS - 1}e}")
    return nearest


_ = ml_dtypes.bfloat16  # registers bfloat16 with numpy
