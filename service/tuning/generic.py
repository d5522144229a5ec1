"""Tasks without a template: their candidates are traces of MetaSchedule's generic space, drawn from a seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from relaxc.service.records.record import Record, RecordSet, RecordTarget
from relaxc.service.tuning.task import CANDIDATE, How, Task

__all__ = ["MOST_CANDIDATES", "beginning_with", "generic", "recorded", "seeded", "standing"]

MOST_CANDIDATES = 64
"""Beyond the untuned one. There is no model of what a trace costs: more are more luck only."""

_SEEDS = (1 << 31) - 2


def generic(task: Task, untuned: How) -> Task:
    """Return the task as one of the generic space, whose traces are not drawn yet. Imports tvm."""
    from relaxc.schedules.metaschedule.traces import METASCHEDULE

    space = {CANDIDATE: tuple(range(MOST_CANDIDATES + 1))}
    rule, version = METASCHEDULE.name, METASCHEDULE.version
    return replace(task, rule=rule, version=version, default={CANDIDATE: 0}, space=space, untuned=untuned)


def seeded(task: Task, target: Any, seed: int) -> Task:
    """Return the task with the traces that are its candidates.

    Equal arguments give equal traces, so a run can be resumed. A task with a template is as it was.
    """
    if task.untuned is None:
        return task
    from relaxc.schedules.metaschedule.traces import sample

    # Which other tasks there are changes nothing.
    own = 1 + (int(task.workload, 16) + seed) % _SEEDS
    return _with(task, sample(task.func(), target, seed=own, count=MOST_CANDIDATES))


def beginning_with(trace: str, task: Task) -> Task:
    """Return the task with this trace as its first candidate, where it is not empty."""
    return _with(task, tuple(dict.fromkeys((trace, *task.traces)))) if trace else task


def recorded(task: Task, record: Record) -> tuple[Task, dict[str, int]]:
    """Return the task, and its point that `record` is about: for a trace, the only one beside the untuned."""
    if task.untuned is None:
        return task, task.point(record.rule, record.parameters)
    return (_with(task, (record.trace,)), {CANDIDATE: 1}) if record.trace else (task, {CANDIDATE: 0})


def standing(task: Task, records: RecordSet, target: RecordTarget, threads: int) -> Record | None:
    """Return the record of exactly this task, by a trace or by its untuned rule, the faster of the two."""
    if task.untuned is None:
        return None
    hows = (How(task.rule, task.version, {}), task.untuned)
    found = [records.get((task.workload, target, how.rule, how.version, task.dtype, threads)) for how in hows]
    fitting = [record for record in found if record is not None and record.shapes == task.shapes]
    return min(fitting, key=lambda record: record.seconds, default=None)


def _with(task: Task, traces: tuple[str, ...]) -> Task:
    return replace(task, traces=traces, space={CANDIDATE: tuple(range(len(traces) + 1))})
