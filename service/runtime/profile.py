"""Where an artifact's time goes: each PrimFunc's time, beside the work that the manifest says it does and its limit."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

from service.errors import ArtifactCorrupt
from service.runtime.dims import evaluate
from service.runtime.peak import Peak, peak
from service.runtime.roofline import limit_of
from service.runtime.session import Session
from service.runtime.tvm_runtime import wait

__all__ = ["FunctionRow", "ProfileReport", "profile"]


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One PrimFunc over one run of the artifact: `time_ms` is of all `calls` together, the median over the runs.

    `flops` and `bytes` are of one call, None where the manifest does not say. `limit_ms` is the least time that this
    machine could take for all calls, `bound` what sets it (`compute`, or the cache level that holds the bytes),
    `of_limit` is limit over time, and `lost_ms` the rest of the time.
    """

    function: str
    calls: int
    time_ms: float
    share: float
    flops: int | None
    bytes: int | None
    gflops: float | None
    gbps: float | None
    limit_ms: float | None
    of_limit: float | None
    lost_ms: float | None
    bound: str | None
    rule: str | None
    source: str | None
    parameters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """A run's time by function, what loses most first. `other_ms` is the virtual machine's own, and that of profiling.

    `events` are those of the last run: (function, start in us, duration in us).
    """

    runs: int
    total_ms: float
    other_ms: float
    functions: tuple[FunctionRow, ...]
    peak: Peak | None
    events: tuple[tuple[str, float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, without the events."""
        data = asdict(self)
        del data["events"]
        return data

    def trace(self) -> dict[str, Any]:
        """Return the last run as a Chrome trace, which chrome://tracing and ui.perfetto.dev open.

        Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
        """
        rows = {row.function: row for row in self.functions}
        events = [
            {
                "name": name,
                "cat": (rows[name].rule or "unknown"),
                "ph": "X",
                "ts": start,
                "dur": duration,
                "pid": 1,
                "tid": 1,
                "args": {"flops": rows[name].flops, "bytes": rows[name].bytes, "source": rows[name].source},
            }
            for name, start, duration in self.events
        ]
        return {"traceEvents": events, "displayTimeUnit": "ms"}


class _Recorder:
    """Notes when each call of a PrimFunc starts and ends; calls of the virtual machine's own are left out."""

    def __init__(self, session: Session) -> None:
        # A kernel launch returns before the kernel ends.
        self._wait = partial(wait, session.device) if session.manifest.target.kind == "cuda" else None
        self.events: list[tuple[str, int, int]] = []
        self._start = 0

    def __call__(self, _function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
        if name.startswith("vm."):
            return 0
        if self._wait is not None:
            self._wait()
        now = time.perf_counter_ns()
        if before:
            self._start = time.perf_counter_ns()
        else:
            self.events.append((name, self._start, now))
        return 0


def profile(
    session: Session,
    inputs: Mapping[str, Any],
    *,
    runs: int = 20,
    warmup_s: float = 0.3,
    machine_peak: Peak | None = None,
) -> ProfileReport:
    """Run the session `runs` times on these inputs, after warming up, with every PrimFunc timed.

    `machine_peak` None measures this CPU's, or takes it from the cache; a GPU's is not known. Raise what a call does.
    """
    if machine_peak is None and session.manifest.target.kind != "cuda":
        machine_peak = peak(session.threads)
    end = time.perf_counter() + warmup_s
    session(inputs)
    while time.perf_counter() < end:
        session(inputs)
    times: dict[str, list[float]] = defaultdict(list)
    totals, recorder, base = [], _Recorder(session), 0
    for _ in range(max(1, runs)):
        recorder.events.clear()
        base = time.perf_counter_ns()
        session.run_instrumented(inputs, recorder)
        totals.append((time.perf_counter_ns() - base) / 1e6)
        _add(times, recorder)
    calls = {name: sum(event[0] == name for event in recorder.events) for name in times}
    total = median(totals)
    rows = _rows(session, inputs, {name: median(values) for name, values in times.items()}, calls, machine_peak)
    other = max(0.0, total - sum(row.time_ms for row in rows))
    events = tuple((name, (start - base) / 1e3, (stop - start) / 1e3) for name, start, stop in recorder.events)
    return ProfileReport(len(totals), round(total, 6), round(other, 6), rows, machine_peak, events)


def _add(times: dict[str, list[float]], recorder: _Recorder) -> None:
    sums: dict[str, float] = defaultdict(float)
    for name, start, stop in recorder.events:
        sums[name] += (stop - start) / 1e6
    for name, value in sums.items():
        times[name].append(value)


def _rows(
    session: Session, inputs: Mapping[str, Any], times: Mapping[str, float], calls: Mapping[str, int], top: Peak | None
) -> tuple[FunctionRow, ...]:
    report = {row.get("function"): row for row in session.manifest.schedule}
    sizes = session.sizes(inputs)
    whole = sum(times.values()) or 1.0
    rows = [
        _row(name, calls[name], spent, spent / whole, report.get(name, {}), sizes, top) for name, spent in times.items()
    ]
    return tuple(sorted(rows, key=lambda row: -(row.time_ms if row.lost_ms is None else row.lost_ms)))


def _row(
    name: str,
    calls: int,
    time_ms: float,
    share: float,
    scheduled: Mapping[str, Any],
    sizes: Mapping[str, int],
    top: Peak | None,
) -> FunctionRow:
    flops, moved = _number(scheduled.get("flops"), sizes), _number(scheduled.get("bytes"), sizes)
    seconds = time_ms / 1e3 / max(1, calls)
    gflops = flops / seconds / 1e9 if flops is not None and seconds else None
    gbps = moved / seconds / 1e9 if moved is not None and seconds else None
    limit_ms, bound = _limit(flops, moved, _number(scheduled.get("written_bytes"), sizes), calls, top)
    return FunctionRow(
        name,
        calls,
        round(time_ms, 6),
        round(share, 6),
        flops,
        moved,
        None if gflops is None else round(gflops, 3),
        None if gbps is None else round(gbps, 3),
        None if limit_ms is None else round(limit_ms, 6),
        None if limit_ms is None or not time_ms else round(limit_ms / time_ms, 4),
        None if limit_ms is None else round(time_ms - limit_ms, 6),
        bound,
        scheduled.get("rule"),
        scheduled.get("source"),
        scheduled.get("parameters") or {},
    )


def _number(value: Any, sizes: Mapping[str, int]) -> int | None:
    """A number of the manifest, which may be text in symbolic sizes; None for what these sizes do not determine."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return evaluate(value, sizes)
    except (ArtifactCorrupt, KeyError, ZeroDivisionError):
        return None


def _limit(
    flops: int | None, moved: int | None, written: int | None, calls: int, top: Peak | None
) -> tuple[float | None, str | None]:
    if top is None or flops is None or moved is None:
        return None, None
    limit = limit_of(top, flops, moved, written or 0)
    return calls * limit.ms, limit.bound
