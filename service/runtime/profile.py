"""Where an artifact's time goes: each PrimFunc's time, beside the work that the manifest says it does and its limit."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from relaxc.service.errors import ArtifactCorrupt
from relaxc.service.runtime.clocks import Clock, DeviceClock, Event, HostClock
from relaxc.service.runtime.dims import evaluate
from relaxc.service.runtime.gpu_peak import GpuPeak
from relaxc.service.runtime.peak import Peak, peak
from relaxc.service.runtime.roofline import limit_of
from relaxc.service.runtime.session import Session

__all__ = ["FunctionRow", "ProfileReport", "profile"]


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One PrimFunc over one run of the artifact: `time_ms` is of all `calls` together, the median over the runs.

    `flops` and `bytes` are of one call, None where the manifest does not say. `limit_ms` is the least time that this
    machine could take for all calls, `bound` what sets it (`compute`, or the cache level that holds the bytes),
    `of_limit` is limit over time, and `lost_ms` the rest of the time. `instruction` is the one that multiplies many
    operands at once, a GPU's tensor core's or a CPU's dot product's; None where the kernel has none.
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
    instruction: str | None = None
    nodes: tuple[str, ...] = ()
    """Those of the model that it computes."""


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """A run's time by function, what loses most first. `other_ms` is the virtual machine's own, and that of profiling.

    On a GPU times are of the device, `total_ms` of a run without events between its kernels: where these overlap it is
    less than their sum. `tensor_share` is the share of the sum in kernels with an `instruction`. `events` are those of
    the last run: (function, start in us, duration in us).
    """

    runs: int
    total_ms: float
    other_ms: float
    functions: tuple[FunctionRow, ...]
    peak: Peak | GpuPeak | None
    tensor_share: float
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


def profile(
    session: Session,
    inputs: Mapping[str, Any],
    *,
    runs: int = 20,
    warmup_s: float = 0.3,
    machine_peak: Peak | None = None,
) -> ProfileReport:
    """Run the session `runs` times on these inputs, after warming up, with every PrimFunc timed.

    `machine_peak` None measures this CPU's with the instructions of the artifact's target, or takes it from the cache;
    a GPU's is in the manifest. Raise what a call does.
    """
    clock: Clock
    top: Peak | GpuPeak | None
    if session.manifest.target.kind == "cuda":
        clock, top = DeviceClock(session), _sheet(session)
    else:
        clock, top = HostClock(session), machine_peak or peak(session.threads, target=session.manifest.target)
    end = time.perf_counter() + warmup_s
    clock.run(inputs)
    while time.perf_counter() < end:
        clock.run(inputs)
    found = [clock.run(inputs) for _ in range(max(1, runs))]
    total, last = median(total for total, _ in found), found[-1][1]
    rows = _rows(session, inputs, _times([events for _, events in found]), Counter(name for name, _, _ in last), top)
    spent = sum(row.time_ms for row in rows)
    tensor = sum(row.time_ms for row in rows if row.instruction) / (spent or 1.0)
    events = tuple((name, start * 1e3, took * 1e3) for name, start, took in last)
    return ProfileReport(len(found), round(total, 6), round(max(0.0, total - spent), 6), rows, top, tensor, events)


def _sheet(session: Session) -> GpuPeak | None:
    """What the manifest says of the GPU that it is for; None where it says nothing, as those of older versions."""
    try:
        return GpuPeak.from_dict(session.manifest.passes["peak"])
    except (KeyError, TypeError, ValueError):
        return None


def _times(runs: Sequence[Sequence[Event]]) -> dict[str, float]:
    """The milliseconds of each function in one run, all its calls together: the median over the runs."""
    times: dict[str, list[float]] = defaultdict(list)
    for events in runs:
        sums: dict[str, float] = defaultdict(float)
        for name, _, took in events:
            sums[name] += took
        for name, value in sums.items():
            times[name].append(value)
    return {name: median(values) for name, values in times.items()}


def _rows(
    session: Session,
    inputs: Mapping[str, Any],
    times: Mapping[str, float],
    calls: Mapping[str, int],
    top: Peak | GpuPeak | None,
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
    top: Peak | GpuPeak | None,
) -> FunctionRow:
    flops, moved = _number(scheduled.get("flops"), sizes), _number(scheduled.get("bytes"), sizes)
    seconds = time_ms / 1e3 / max(1, calls)
    gflops = flops / seconds / 1e9 if flops is not None and seconds else None
    gbps = moved / seconds / 1e9 if moved is not None and seconds else None
    own = None if top is None else top.of(scheduled.get("dtype") or "")
    limit_ms, bound = _limit(flops, moved, _number(scheduled.get("written_bytes"), sizes), calls, own)
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
        scheduled.get("instruction"),
        tuple(scheduled.get("nodes", ())),
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
