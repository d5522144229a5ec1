"""What a comparison of an artifact with its reference found, as values with one JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

__all__ = ["OutputReport", "Verification", "top1"]


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One output: how far off it is, and whether that passes.

    Errors are the largest over all finite elements, to three digits; None where there is nothing to measure.
    `scaled_error` is what `tolerance` bounds and `passing_tolerance` is the least one that would pass, None where
    none would. `nonfinite_mismatches` counts NaN and infinities that only one side has; `first_mismatch` is the
    index of the first element that fails; `ties` counts integers that differ where rounding decides. `reason` is empty
    where it passed.
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
    ties: int = 0
    moved: bool = False
    """Whether it passed by what the reference itself moves, as quantized models do, and not by its dtype."""
    unrounded: dict[str, float] | None = None
    """How far it is from the model with its weights as they were: `error`, the root mean square of the difference over
    that of the values, and the `cosine`; None where no weights were rounded."""
    unquantized: dict[str, dict[str, float]] | None = None
    """How far the `artifact` and the `reference` are from the model whose activations are not rounded, likewise."""
    rms_error: float | None = None
    """Where roundings decide: the root mean square of the errors over that of the values, and its `bound`."""
    bound: float | None = None
    """What roundings may cause, propagated: no more than the reference's own distance from the model whose activations
    are not rounded."""
    slice_error: float | None = None
    """The largest figure of a slice, such as a channel, over its bound (`runtime.slices`), where one is judged:
    over 1 it is wrong."""
    second_opinion: dict[str, float | None] | None = None
    """Scaled errors, where the reference disagreed with itself without its own rewrites, which judges then: ours beside
    the `optimized` and the `plain` one, and these two `apart`."""
    float64: dict[str, float | None] | None = None
    """Scaled errors of the `artifact` and of the `reference` beside the reference in float64, which judges where the
    reference itself refuses."""
    top1: dict[str, int] | None = None
    """Of a quantized model, the `rows` along the last axis, those `decided`: the largest element leads by more than the
    bound, and those of them in which it is the largest of both (`equal`)."""


_RARE = frozenset({"moved", "unrounded", "unquantized", "rms_error", "bound", "slice_error"})
_RARE |= {"second_opinion", "float64", "top1"}


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of all outputs; `reason` says what failed, and is empty where all passed. `weak` says of outputs
    that passed why that tells little of them.
    """

    passed: bool
    reason: str
    outputs: tuple[OutputReport, ...]
    weak: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, the same on every run; `from_dict` is its inverse."""
        rows = [asdict(row) for row in self.outputs]
        rows = [{name: value for name, value in row.items() if value or name not in _RARE} for row in rows]
        report = {"passed": self.passed, "reason": self.reason, "outputs": rows}
        return {**report, "weak": list(self.weak)} if self.weak else report

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Verification:
        """Return the report that `to_dict` described."""
        rows = tuple(OutputReport(**row) for row in data["outputs"])
        return Verification(data["passed"], data["reason"], rows, tuple(data.get("weak", ())))

    def apart(self, got: Mapping[str, Any], others: Mapping[str, Any]) -> Verification:
        """Return the report with how far the outputs are from others, which are not to pass or fail by."""
        rows = (replace(row, unrounded=_distance(got[row.name], others[row.name])) for row in self.outputs)
        return replace(self, outputs=tuple(rows))

    def quantized(self, got: Mapping[str, Any], want: Mapping[str, Any], real: Mapping[str, Any]) -> Verification:
        """Return the report with how far both are from `real`, what was not rounded, and with the largest elements."""
        rows = []
        for row in self.outputs:
            pairs = (("artifact", got[row.name]), ("reference", want[row.name]))
            apart = {who: _distance(values, real[row.name]) for who, values in pairs}
            found = {who: distance for who, distance in apart.items() if distance is not None}
            decided = top1(got[row.name], want[row.name], row.bound or row.tolerance) if found else None
            rows.append(replace(row, unquantized=found or None, top1=decided))
        return replace(self, outputs=tuple(rows))

    def second(self, first: Verification, apart: Verification) -> Verification:
        """Return this report, made beside the plain reference, with what was found beside the optimized one, and how
        far that is from the plain one.
        """
        rows = []
        for row, before, far in zip(self.outputs, first.outputs, apart.outputs, strict=True):
            errors = {"optimized": before.scaled_error, "plain": row.scaled_error, "apart": far.scaled_error}
            rows.append(row if far.passed else replace(row, second_opinion=errors))
        reason = self.reason and f"{self.reason} (without the reference's own optimizations; with them: {first.reason})"
        return Verification(self.passed, reason, tuple(rows))

    def in_float64(self, ours: Verification, reference: Verification) -> Verification:
        """Return this report with its failed outputs as they are beside the reference in float64, which `ours` says of
        the artifact, and `reference` of the reference itself.
        """
        rows = []
        for first, row, theirs in zip(self.outputs, ours.outputs, reference.outputs, strict=True):
            errors = {"artifact": row.scaled_error, "reference": theirs.scaled_error}
            rows.append(first if first.passed else replace(row, float64=errors))
        failed = [f"{row.name}: {row.reason}" for row in rows if not row.passed]
        reason = f"{'; '.join(failed)} (beside the reference in float64; beside itself: {self.reason})"
        return Verification(not failed, reason if failed else "", tuple(rows))

    def weakened(self, why: Mapping[str, str]) -> Verification:
        """Return the report with what makes the check of an output weak. What had nothing to compare passes by its
        shapes and dtypes.
        """
        notes = tuple(f"{name}: {reason}" for name, reason in why.items())
        is_mute = bool(self.outputs) and all(row.passed and not row.compared for row in self.outputs)
        return replace(self, passed=True, reason="", weak=notes) if is_mute else replace(self, weak=notes)

    def sliced(self, found: Mapping[str, tuple[float, str]]) -> Verification:
        """Return the report with what `Slices.worst` found of outputs, which fail by it."""
        rows = []
        for row in self.outputs:
            error, reason = found.get(row.name, (None, ""))
            wrong = row.passed and error is not None and error > 1
            judged = replace(row, slice_error=None if error is None else float(f"{error:.3g}"))
            rows.append(replace(judged, passed=False, reason=reason) if wrong else judged)
        failed = [f"{row.name}: {row.reason}" for row in rows if not row.passed]
        return Verification(self.passed and not failed, self.reason or "; ".join(failed), tuple(rows))

    @staticmethod
    def worst(several: Iterable[Verification]) -> Verification:
        """Return one report for several runs: each output's run that failed, or else that had the largest scaled
        error.
        """
        runs = list(several)
        if not runs:
            return Verification(False, "nothing was compared", ())
        rows = [_worst(same) for same in zip(*(run.outputs for run in runs), strict=True)]
        failed = next((run for run in runs if not run.passed), None)
        return Verification(failed is None, failed.reason if failed else "", tuple(rows))


def _worst(rows: Sequence[OutputReport]) -> OutputReport:
    """One output's worst run, with the opinion that was asked in any of them."""
    worst = max(rows, key=_badness)
    if worst.float64 is None and (asked := [row for row in rows if row.float64 is not None]):
        worst = replace(worst, float64=max(asked, key=_badness).float64)
    if worst.second_opinion is None and (asked := [row for row in rows if row.second_opinion is not None]):
        worst = replace(worst, second_opinion=max(asked, key=_badness).second_opinion)
    return worst


def _badness(row: OutputReport) -> tuple[bool, float]:
    return not row.passed, math.inf if row.scaled_error is None and row.compared else row.scaled_error or 0.0


def top1(got: Any, want: Any, bound: float) -> dict[str, int] | None:
    """Return how many rows along the last axis there are, in how many the largest element of `want` leads by more than
    `bound` times the root mean square, and in how many of these it is the largest of `got`.
    """
    if got.shape != want.shape or want.ndim == 0 or want.shape[-1] < 2 or not want.size:
        return None
    rows, others = (each.astype("float64").reshape(-1, want.shape[-1]) for each in (want, got))
    best = rows.argmax(axis=1)
    first, second = np.partition(rows, -2, axis=1)[:, [-1, -2]].T
    decided = first - second > bound * np.sqrt(np.mean(np.square(rows)))
    equal = decided & (others.argmax(axis=1) == best)
    return {"rows": len(rows), "decided": int(decided.sum()), "equal": int(equal.sum())}


def _distance(got: Any, other: Any) -> dict[str, float] | None:
    """How far two arrays of floats are from each other, where both are finite; None of others."""
    if got.shape != other.shape or not got.size or got.dtype.kind not in "fV":
        return None
    a, b = got.astype("float64").reshape(-1), other.astype("float64").reshape(-1)
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    left, right, apart = (float(np.sqrt(np.sum(np.square(each)))) for each in (a, b, a - b))
    if not left or not right:
        return None
    return {"error": float(f"{apart / right:.3g}"), "cosine": round(float(a @ b) / left / right, 6)}
