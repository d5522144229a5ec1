"""What was measured as numbers: medians, ratios to the best peer with their spread, and the project's bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

__all__ = ["BATCHED_BAR", "GEOMEAN_BAR", "SINGLE_BAR", "CaseReport", "Ratio", "Row", "Summary", "geomean", "summarize"]

GEOMEAN_BAR, SINGLE_BAR, BATCHED_BAR = 0.95, 1.10, 1.05
"""Ours over the best peer: the geometric mean at batch 1, the largest at batch 1, and the largest of batch 8."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our time over the best peer's in the same round: the median over the rounds, and the spread p10 to p90."""

    peer: str
    median: float
    p10: float
    p90: float


@dataclass(frozen=True, slots=True)
class Row:
    """One runtime on one case. `rounds_ms` are the medians of its turns; `peak_bytes` is while running, from the moment
    when the model was loaded; `compile_s` is of the compile ahead of time, or of loading where that compiles.

    `error` and `agrees` compare its outputs with ours: |ours - its| / (|its| + rms(its)) at most.
    """

    runtime: str
    version: str
    counts: bool
    rounds_ms: tuple[float, ...]
    p10_ms: float
    median_ms: float
    p90_ms: float
    compile_s: float
    load_s: float
    size_bytes: int
    peak_bytes: int
    load_peak_bytes: int
    error: float | None = None
    agrees: bool | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CaseReport:
    """One case on all runtimes. `ratio` None where there is no peer to compare with; `failed` has who could not run."""

    case: str
    batched: bool
    threads: int
    rows: tuple[Row, ...]
    ratio: Ratio | None
    failed: Mapping[str, str] = field(default_factory=dict)

    def row(self, runtime: str) -> Row | None:
        """The runtime's row."""
        return next((row for row in self.rows if row.runtime == runtime), None)

    @property
    def capped(self) -> list[Row]:
        """The rows whose instructions were sampled, as their case is for other instructions than this machine's."""
        return [row for row in self.rows if "avx512_share" in row.facts]

    @property
    def best(self) -> Row | None:
        """The row of the fastest peer."""
        return self.row(self.ratio.peer) if self.ratio else None

    @property
    def memory_ratio(self) -> float | None:
        """Our peak memory over the best peer's."""
        ours = self.row("relaxc")
        return ours.peak_bytes / self.best.peak_bytes if ours and self.best and self.best.peak_bytes else None

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; `from_dict` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CaseReport:
        """The report that `to_dict` described."""
        rows = tuple(Row(**{**row, "rounds_ms": tuple(row["rounds_ms"])}) for row in data["rows"])
        ratio = Ratio(**data["ratio"]) if data["ratio"] else None
        return CaseReport(data["case"], data["batched"], data["threads"], rows, ratio, data["failed"])


@dataclass(frozen=True, slots=True)
class Summary:
    """The bars, as information: None where no case says."""

    geomean: float | None
    worst: float | None
    worst_batched: float | None

    @property
    def verdicts(self) -> list[tuple[str, float, float, bool]]:
        """(what, found, bar, passed) for each bar that a case says something of."""
        bars = (
            ("geometric mean, batch 1", self.geomean, GEOMEAN_BAR),
            ("largest ratio, batch 1", self.worst, SINGLE_BAR),
            ("largest ratio, larger batches", self.worst_batched, BATCHED_BAR),
        )
        return [(what, found, bar, found <= bar) for what, found, bar in bars if found is not None]


def percentiles(times: Iterable[float]) -> tuple[float, float, float]:
    """p10, median and p90, rounded to a microsecond where these are milliseconds."""
    p10, p50, p90 = np.percentile(np.array(list(times)), [10, 50, 90])
    return round(float(p10), 4), round(float(p50), 4), round(float(p90), 4)


def ratio_to_best(ours: str, rounds: Mapping[str, tuple[float, ...]], peers: Iterable[str]) -> Ratio | None:
    """Ours over the peer with the smallest median, round by round."""
    there = [peer for peer in peers if peer in rounds]
    if ours not in rounds or not there:
        return None
    best = min(there, key=lambda peer: float(np.median(rounds[peer])))
    p10, median, p90 = percentiles(a / b for a, b in zip(rounds[ours], rounds[best], strict=True))
    return Ratio(best, median, p10, p90)


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean of positive numbers; None of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def summarize(reports: Iterable[CaseReport]) -> Summary:
    """The bars over these cases."""
    judged = [(report.batched, report.ratio.median) for report in reports if report.ratio is not None]
    single = [ratio for is_batched, ratio in judged if not is_batched]
    batched = [ratio for is_batched, ratio in judged if is_batched]
    mean = geomean(single)
    return Summary(None if mean is None else round(mean, 4), max(single, default=None), max(batched, default=None))
