"""What there is to tune in a model: its different PrimFuncs whose template has parameters, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from service.request import TargetSpec
from service.tuning.task import Task

__all__ = ["FoundTasks", "Untunable", "tasks_of"]


@dataclass(frozen=True, slots=True)
class Untunable:
    """A PrimFunc that is no task, and one phrase about the reason."""

    name: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class FoundTasks:
    """Tasks in the order of the module, equal PrimFuncs as one; `written_bytes` are those of one call, by workload."""

    tasks: tuple[Task, ...]
    untunable: tuple[Untunable, ...]
    written_bytes: Mapping[str, int]


def tasks_of(
    module: Any,
    report: Sequence[Mapping[str, Any]],
    calls: Mapping[str, int],
    spec: TargetSpec,
    target: Any,
    rules: Mapping[str, Any],
) -> FoundTasks:
    """The tasks of an optimized module.

    `report` has the rows of `lowering.schedule` without records: the rule that takes each PrimFunc, and its default
    parameters. `calls` are the calls of each PrimFunc in a run; one inside a loop or branch counts once.
    """
    found: dict[tuple[str, str, str], Task] = {}
    untunable: list[Untunable] = []
    written: dict[str, int] = {}
    for row in report:
        name, key = row["function"], (row["workload"], row["dtype"], row["shapes"]) if "workload" in row else None
        weight = max(1, calls.get(name, 1))
        if key in found:
            found[key] = replace(found[key], weight=found[key].weight + weight)
            continue
        made = _task(module[name], row, weight, spec, target, rules)
        if isinstance(made, str):
            untunable.append(Untunable(name, row["rule"], made))
        elif key is not None:
            found[key] = made
            written[made.workload] = row["written_bytes"]
    return FoundTasks(tuple(found.values()), tuple(untunable), written)


def _task(
    func: Any, row: Mapping[str, Any], weight: int, spec: TargetSpec, target: Any, rules: Mapping[str, Any]
) -> Task | str:
    """The task of one row, or why there is none."""
    import tvm

    from schedules.rule import Declined

    rule = rules.get(row["rule"])
    if rule is None:
        return "it came scheduled"
    choices = rule.choices(func, target)
    if isinstance(choices, Declined) or prod(map(len, choices.values())) < 2:
        return "its template has no parameters to choose"
    if not all(isinstance(row[name], int) for name in ("flops", "bytes", "written_bytes")):
        return "its sizes are known at run time only; --shape fixes them"
    return Task(
        workload=row["workload"],
        name=row["function"],
        func_json=tvm.ir.save_json(func),
        target=spec,
        dtype=row["dtype"],
        rule=rule.name,
        version=rule.version,
        default=dict(row["parameters"]),
        space={name: tuple(values) for name, values in choices.items()},
        flops=float(row["flops"]),
        bytes=float(row["bytes"]),
        weight=weight,
        shapes=row["shapes"],
    )
