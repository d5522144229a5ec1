"""What there is to tune in a model, and how much each kernel can take at least."""

from __future__ import annotations

from typing import Any

from relaxc.schedules.hardware import gpu_of
from relaxc.service.lowering.target import to_tvm
from relaxc.service.runtime.peak import Peak
from relaxc.service.runtime.roofline import Far, limit_of
from relaxc.service.tuning.task import Task
from relaxc.service.tuning.tasks import FoundTasks

__all__ = ["limit_s", "listed"]


def limit_s(task: Task, found: FoundTasks, peak: Peak | None) -> float:
    """Return the least seconds that a call can take; 0 where that is not known.

    `peak` is what this machine's CPU was measured to reach; a GPU's hardware row says what it can.
    """
    if task.target.kind == "cuda":
        row = gpu_of(to_tvm(task.target))
        return row.least_seconds(task.flops, task.bytes, task.dtype.partition("+")[0])
    if peak is None:
        return 0.0
    sizes = found.sizes[task.workload]
    far = Far(sizes.weights, task.weight_bytes)
    return limit_of(peak.of(task.dtype), task.flops, int(task.bytes), sizes.written, far).ms / 1e3


def listed(found: FoundTasks, peak: Peak | None) -> dict[str, Any]:
    """Return the tasks as JSON values. `share` is of all tasks' time, as if each took the least that it can."""
    limits = [limit_s(task, found, peak) for task in found.tasks]
    whole = sum(task.weight * limit for task, limit in zip(found.tasks, limits, strict=True))
    rows = [
        {
            **{
                name: getattr(task, name)
                for name in ("name", "workload", "rule", "version", "dtype", "shapes", "weight")
            },
            "flops": task.flops,
            "bytes": task.bytes,
            "points": task.size,
            "default": dict(task.default),
            "limit_s": limit or None,
            "share": task.weight * limit / whole if whole else None,
        }
        for task, limit in zip(found.tasks, limits, strict=True)
    ]
    skipped = [{"name": one.name, "rule": one.rule, "reason": one.reason} for one in found.untunable]
    return {"tasks": rows, "skipped": skipped}
