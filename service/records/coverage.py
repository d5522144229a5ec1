"""Which kernels of a model have a record behind them, and how much of its time each is estimated to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["HOT_SHARE", "Coverage", "Kernel", "coverage", "estimated_cycles"]

HOT_SHARE = 0.95
"""The part of a model's estimated time that its hot workloads make up together."""

_GPU_FLOPS_PER_BYTE = 16
"""fp32 operations that a data-centre GPU computes while it reads a byte: 67 TFLOP/s and 3.4 TB/s of an H100 make 20."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One workload of a model: the functions that have it, what schedules it, and the record behind that.

    `calls` are those of all functions in one run, `share` their part of the estimated time; `hot` is one of the few
    that make up 95 % of it. `tunable`: its template has parameters to choose. `passed_over` are records that were
    found and do not fit, with reasons.
    """

    workload: str
    functions: tuple[str, ...]
    rule: str
    version: int
    dtype: str
    shapes: str
    calls: int
    share: float
    hot: bool
    tunable: bool
    record: Mapping[str, Any] | None
    passed_over: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the kernel as JSON values; `from_dict` is its inverse."""
        return {**asdict(self), "functions": list(self.functions), "passed_over": [list(p) for p in self.passed_over]}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Kernel:
        """Return the kernel that `to_dict` described."""
        passed = tuple((str(record), str(reason)) for record, reason in data["passed_over"])
        return Kernel(**{**data, "functions": tuple(data["functions"]), "passed_over": passed})


@dataclass(frozen=True, slots=True)
class Coverage:
    """The kernels of one model for one target, the heaviest first."""

    kernels: tuple[Kernel, ...]

    def required(self, which: str) -> list[Kernel]:
        """Those that `--require-tuned` asks a record for: the tunable ones, of `hot` only those that are hot."""
        return [kernel for kernel in self.kernels if kernel.tunable and (which == "all" or kernel.hot)]

    def missing(self, which: str) -> list[Kernel]:
        """Those of the required ones that have none."""
        return [kernel for kernel in self.required(which) if kernel.record is None]


def coverage(
    report: Sequence[Mapping[str, Any]],
    calls: Mapping[str, int],
    cycles: Callable[[Mapping[str, Any]], float],
    points: Callable[[str, str], int],
) -> Coverage:
    """Coverage of the rows of a schedule report.

    `calls` says how often a function is called, `cycles` how long a row's kernel takes, in any unit; `points(function,
    rule)` counts what there is to choose, and is asked only where it matters.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in report:
        rows.setdefault(str(row["workload"]), []).append(row)
    times = {workload: sum(calls.get(r["function"], 0) * cycles(r) for r in same) for workload, same in rows.items()}
    total = sum(times.values()) or 1.0
    kernels, before = [], 0.0
    for workload in sorted(rows, key=lambda name: (-times[name], name)):
        share = times[workload] / total
        kernels.append(_kernel(rows[workload], calls, share, before < HOT_SHARE and share > 0, points))
        before += share
    return Coverage(tuple(kernels))


def _kernel(
    rows: Sequence[Mapping[str, Any]],
    calls: Mapping[str, int],
    share: float,
    hot: bool,
    points: Callable[[str, str], int],
) -> Kernel:
    row = rows[0]
    return Kernel(
        workload=row["workload"],
        functions=tuple(sorted(str(each["function"]) for each in rows)),
        rule=row["rule"],
        version=row["version"],
        dtype=row["dtype"],
        shapes=row["shapes"],
        calls=sum(calls.get(each["function"], 0) for each in rows),
        share=round(share, 6),
        hot=hot,
        tunable=row["source"] == "record" or (bool(row["parameters"]) and points(row["function"], row["rule"]) > 1),
        record=row["record"],
        passed_over=tuple((record, reason) for record, reason in row["passed_over"]),
    )


def estimated_cycles(flops: float, size_bytes: float, target: Any) -> float:
    """Return a roofline of the target's hardware row: cycles of a CPU, or a GPU's in a unit that only compares kernels.

    It is the same on every machine, which what was measured on one is not.
    """
    if str(target.kind.name) == "cuda":
        return max(flops / _GPU_FLOPS_PER_BYTE, size_bytes)
    from relaxc.schedules.hardware import cpu_of

    cpu = cpu_of(target)
    compute = flops / (2 * cpu.fma_per_cycle * cpu.lanes(32))
    moved = size_bytes / (cpu.l3_bytes_per_cycle if size_bytes <= cpu.l3_bytes else cpu.memory_bytes_per_cycle)
    return max(compute, moved) / cpu.cores
