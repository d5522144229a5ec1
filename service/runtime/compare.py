"""Whether an artifact's outputs are the reference's: per output, by a tolerance that its dtype sets.

An element's error is scaled by its own size and by that of its tensor, outliers left out:
|got - want| / (|want| + rms(want)). So a value near zero among ordinary ones is judged as its neighbours are, and a
tensor of small values as strictly as one of large ones. An output passes when its largest scaled error is within the
tolerance, and its direction, the cosine with the reference, within the bound beside it: that finds errors that are
small in every element and large in all.

| dtype    | tolerance | cosine at least | why |
|----------|-----------|-----------------|-----|
| float64  | 1e-8      | 1 - 1e-12       | constants are often float32 in origin |
| float32  | 1e-4      | 1 - 1e-6        | a tanh GELU in place of an erf one is off by 3e-4 |
| float16  | 2e-2      | 1 - 1e-4        | 20 roundings of 2^-10, after tens of layers |
| bfloat16 | 1e-1      | 1 - 1e-3        | 25 roundings of 2^-8 |

Integers and bools must be equal: an argmax over two values that rounding makes equal may differ, and then fails. NaN
and infinities must be where the reference has them, with its sign; a NaN everywhere compares nothing and fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np

from service.request import Precision, Signature, TensorSpec

__all__ = ["TOLERANCES", "OutputReport", "Tolerance", "Verification", "compare", "judging_dtypes"]

Array = np.ndarray[Any, Any]

_FLOOR = 1e-6
"""Least scale of a tensor: below it, differences are noise of what cancelled out."""

_OUTLIER = 1e3
"""Elements this many times the median of the nonzero ones do not count for a tensor's size and direction: one mask
filler of -3.4e38 would make every other error look like nothing."""

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest scaled error, and the smallest cosine, that pass."""

    error: float
    cosine: float


TOLERANCES = {
    "float64": Tolerance(1e-8, 1 - 1e-12),
    "float32": Tolerance(1e-4, 1 - 1e-6),
    "float16": Tolerance(2e-2, 1 - 1e-4),
    "bfloat16": Tolerance(1e-1, 1 - 1e-3),
}
_EXACT = Tolerance(0.0, 1.0)
_COARSENESS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One output: how far off it is, and whether that passes.

    Errors are the largest over all finite elements, to three digits; None where there is nothing to measure.
    `scaled_error` is what `tolerance` bounds and `passing_tolerance` is the least one that would pass, None where
    none would. `nonfinite_mismatches` counts NaN and infinities that only one side has; `first_mismatch` is the
    index of the first element that fails. `reason` is empty where it passed.
    """

    name: str
    dtype: str
    shape: list[int]
    passed: bool
    reason: str
    compared: int
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    scaled_error: float | None = None
    cosine: float | None = None
    nonfinite: int = 0
    nonfinite_mismatches: int = 0
    first_mismatch: list[int] | None = None
    tolerance: float = 0.0
    passing_tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of all outputs; `reason` says what failed, and is empty where all passed."""

    passed: bool
    reason: str
    outputs: tuple[OutputReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, the same on every run; `from_dict` is its inverse."""
        return {"passed": self.passed, "reason": self.reason, "outputs": [asdict(row) for row in self.outputs]}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Verification:
        """The report that `to_dict` described."""
        return Verification(data["passed"], data["reason"], tuple(OutputReport(**row) for row in data["outputs"]))

    @staticmethod
    def worst(several: Iterable[Verification]) -> Verification:
        """One report for several runs: each output's run that failed, or else that had the largest scaled error."""
        runs = list(several)
        if not runs:
            return Verification(False, "nothing was compared", ())
        rows = [max(same, key=_badness) for same in zip(*(run.outputs for run in runs), strict=True)]
        failed = next((run for run in runs if not run.passed), None)
        return Verification(failed is None, failed.reason if failed else "", tuple(rows))


def _badness(row: OutputReport) -> tuple[bool, float]:
    return not row.passed, math.inf if row.scaled_error is None and row.compared else row.scaled_error or 0.0


def judging_dtypes(
    signature: Signature, *, precision: Precision | None = None, weights: Iterable[TensorSpec] = ()
) -> dict[str, str]:
    """Output name → the dtype whose tolerance judges it: the coarsest float on the way to it.

    That is the coarsest of its own, the floating inputs', the weights' and `precision`; integers keep their own.
    """
    used = {spec.dtype for spec in (*signature.inputs, *weights)}
    used |= {precision.dtype} if precision else set()
    return {
        spec.name: _coarsest({spec.dtype, *used}) if _is_float(spec.dtype) else spec.dtype for spec in signature.outputs
    }


def _is_float(dtype: str) -> bool:
    return dtype in _COARSENESS


def _coarsest(dtypes: Iterable[str]) -> str:
    return max(filter(_is_float, dtypes), key=_COARSENESS.index)


def compare(
    got: Mapping[str, Array], want: Mapping[str, Array], dtypes: Mapping[str, str] | None = None
) -> Verification:
    """Compare an artifact's outputs with the reference's.

    `dtypes` maps an output to the dtype whose tolerance judges it (see `judging_dtypes`), by default the
    reference's own. Names, dtypes and shapes must be equal. Nothing to compare is a failure.
    """
    if got.keys() != want.keys():
        lacking, extra = sorted(want.keys() - got.keys()), sorted(got.keys() - want.keys())
        return Verification(False, f"outputs differ: {lacking} are missing, {extra} are too many", ())
    rows = tuple(_compare_output(name, got[name], want[name], (dtypes or {}).get(name)) for name in want)
    failed = [f"{row.name}: {row.reason}" for row in rows if not row.passed]
    if not failed and not any(row.compared for row in rows):
        failed = ["nothing was compared: every output is empty"]
    return Verification(not failed, "; ".join(failed), rows)


def _compare_output(name: str, got: Array, want: Array, judge: str | None) -> OutputReport:
    dtype, shape = str(want.dtype), list(want.shape)
    if str(got.dtype) != dtype or got.shape != want.shape:
        reason = f"it is {got.dtype}{list(got.shape)}, the reference {dtype}{shape}"
        return OutputReport(name, dtype, shape, False, reason, 0)
    if _is_float(dtype):
        return _compare_floats(name, got, want, TOLERANCES[judge if judge in TOLERANCES else dtype])
    return _compare_exactly(name, got, want)


def _compare_exactly(name: str, got: Array, want: Array) -> OutputReport:
    wrong = got != want
    count, dtype, shape = int(np.count_nonzero(wrong)), str(want.dtype), list(want.shape)
    if not count:
        return OutputReport(name, dtype, shape, True, "", want.size, 0.0, 0.0, 0.0, passing_tolerance=0.0)
    largest = np.abs(got[wrong].astype(np.float64) - want[wrong].astype(np.float64)).max()
    reason = f"{count} of {want.size} {dtype} values differ; they must be equal"
    return OutputReport(name, dtype, shape, False, reason, want.size, float(largest), first_mismatch=_first(wrong))


def _compare_floats(name: str, got: Array, want: Array, tolerance: Tolerance) -> OutputReport:
    found = _measure(got, want)
    shape, dtype = list(want.shape), str(want.dtype)
    reason = _verdict(found, tolerance, want.size)
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
        passing_tolerance=_rounded(found.max_scaled, up=True) if passable or not want.size else None,
    )


@dataclass(slots=True)
class _Measured:
    finite: int
    infinite: int
    nonfinite: int
    mismatches: int
    mismatched: Array
    scaled: Array
    max_abs: float
    max_rel: float
    max_scaled: float
    cosine: float | None


def _measure(got: Array, want: Array) -> _Measured:
    """Errors over the elements that are finite on both sides, in double precision."""
    finite = np.isfinite(want) & np.isfinite(got)
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = finite | (np.isnan(a) & np.isnan(b)) | (a == b)
    error = np.abs(np.subtract(a, b, where=finite, out=np.zeros_like(b)))
    size = np.abs(np.where(finite, b, 0.0))
    ordinary = finite & (size <= _OUTLIER * _median(size[size > 0]))
    rms = _rms(size[ordinary])
    scaled = error / (size + max(rms, _FLOOR))
    relative = np.divide(error, size, where=size > 0, out=np.zeros_like(error))
    return _Measured(
        finite=int(np.count_nonzero(finite)),
        infinite=int(np.count_nonzero(np.isinf(b) & (a == b))),
        nonfinite=int(want.size - np.count_nonzero(np.isfinite(want))),
        mismatches=int(want.size - np.count_nonzero(same)),
        mismatched=~same,
        scaled=scaled,
        max_abs=float(error.max(initial=0.0)),
        max_rel=float(relative.max(initial=0.0)),
        max_scaled=float(scaled.max(initial=0.0)),
        cosine=_cosine(a[ordinary], b[ordinary]) if rms > _FLOOR else None,
    )


def _median(values: Array) -> float:
    return float(np.median(values)) if values.size else 0.0


def _rms(values: Array) -> float:
    largest = float(values.max(initial=0.0))
    return largest * math.sqrt(float(np.mean(np.square(values / largest)))) if largest else 0.0


def _cosine(a: Array, b: Array) -> float:
    """The cosine of the angle between two vectors, the second of which is not zero."""
    largest = max(float(np.abs(a).max()), float(np.abs(b).max()))
    a, b = a / largest, b / largest
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return min(1.0, float(a @ b) / norms) if norms else 0.0


def _verdict(found: _Measured, tolerance: Tolerance, size: int) -> str:
    """Why an output fails, or nothing."""
    if not size:
        return ""
    if found.mismatches:
        return f"{found.mismatches} of {size} values are NaN or infinite on one side only, or differ in sign"
    if not found.finite and not found.infinite:
        return "every value is NaN on both sides, so nothing was compared"
    if not found.max_scaled <= tolerance.error:
        return f"scaled error {found.max_scaled:.3g} is over the tolerance {tolerance.error:.3g}"
    if found.cosine is not None and not found.cosine >= tolerance.cosine:
        return f"the cosine {found.cosine:.9f} with the reference is under {tolerance.cosine:.9f}"
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
