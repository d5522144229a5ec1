"""What is on record for a task: the very point, or points that won for the same template on the nearest shapes."""

from __future__ import annotations

from math import inf, log2

from relaxc.service.records.record import Record, RecordSet, RecordTarget
from relaxc.service.tuning.plan import AT_ROOFLINE, ENOUGH_TRIALS
from relaxc.service.tuning.task import Task

__all__ = ["is_finished", "nearest", "standing"]

_MOST = 2
"""Hints for a task: each costs a trial."""
_FAR = 4.0
"""The sum of log2 of the ratios of all dims beyond which shapes have nothing to say to each other."""


def standing(task: Task, records: RecordSet, target: RecordTarget, threads: int) -> Record | None:
    """Return the record of exactly this task on so many threads, if its point is still one of the space."""
    rules = [(named.rule, named.version) for named in task.templates] or [(task.rule, task.version)]
    found = [records.get((task.workload, target, *rule, task.dtype, threads)) for rule in rules]
    fitting = [
        r for r in found if r is not None and r.shapes == task.shapes and task.has(task.point(r.rule, r.parameters))
    ]
    return min(fitting, key=lambda record: record.seconds, default=None)


def is_finished(record: Record, task: Task) -> bool:
    """Return whether the search behind a record came to its end, and was not cut short by its budget."""
    return record.trials >= min(ENOUGH_TRIALS, task.size) or (record.roofline or 0.0) >= AT_ROOFLINE


def nearest(task: Task, records: RecordSet, target: RecordTarget) -> list[Record]:
    """Return records of the same template, version, dtype and target for near shapes, the nearest first."""
    fitting = [
        (distance, record.workload, record)
        for record in records
        if (record.target, record.rule, record.version, record.dtype) == (target, task.rule, task.version, task.dtype)
        and record.workload != task.workload
        and (distance := _distance(record.shapes, task.shapes)) <= _FAR
    ]
    return [record for _, _, record in sorted(fitting, key=lambda item: item[:2])[:_MOST]]


def _distance(one: str, other: str) -> float:
    """The sum over the dims of the first two buffers of how far they are apart by ratio; epilogues do not count."""
    pairs = list(zip(one.split()[:2], other.split()[:2], strict=False))
    if not pairs:
        return inf
    return sum(_apart(first.split("x"), second.split("x")) for first, second in pairs)


def _apart(one: list[str], other: list[str]) -> float:
    if len(one) != len(other):
        return inf
    return sum(
        0.0 if a == b else abs(log2(int(a) / int(b))) if a.isdigit() and b.isdigit() and int(a) and int(b) else inf
        for a, b in zip(one, other, strict=True)
    )
