"""What there is to tune in a model: its different PrimFuncs whose template has parameters, and why not the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from relaxc.service.records.coverage import estimated_cycles
from relaxc.service.request import TargetSpec
from relaxc.service.tuning.generic import generic
from relaxc.service.tuning.task import TEMPLATE, How, Named, Task

if TYPE_CHECKING:
    from relaxc.schedules.plan import Plan
    from relaxc.schedules.template import Parameters

__all__ = ["FoundTasks", "Sizes", "Untunable", "tasks_of"]

_SIZES = ("flops", "bytes", "written_bytes")
_LAST = "cpu.fallback"
_NOTABLE = 0.01
"""The share of the estimated time from which it pays to search for what a template without choices makes."""


@dataclass(frozen=True, slots=True)
class Untunable:
    """A PrimFunc that is no task, and one phrase about the reason."""

    name: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one call: what it writes, and what it reads of the model's weights."""

    written: int
    weights: int


@dataclass(frozen=True, slots=True)
class FoundTasks:
    """Tasks in the order of the module, equal PrimFuncs as one; the sizes are by workload."""

    tasks: tuple[Task, ...]
    untunable: tuple[Untunable, ...]
    sizes: Mapping[str, Sizes]


def tasks_of(
    module: Any,
    report: Sequence[Mapping[str, Any]],
    calls: Mapping[str, int],
    spec: TargetSpec,
    target: Any,
    rules: Mapping[str, Any],
    *,
    weight_operands: Mapping[str, tuple[int, ...]],
    weight_bytes: int,
    unfused: Any = None,
) -> FoundTasks:
    """Return the tasks of an optimized module.

    On a GPU the points of all templates that take a PrimFunc are searched, one of each kernel. Where a template has no
    choice, MetaSchedule's generic space is searched on a CPU, if the last rule had to take the PrimFunc or it is over
    1 % of the estimated time.

    `report` has the rows of `lowering.schedule` without records: the rule that takes each PrimFunc, and its default
    parameters. `calls` are the calls of each PrimFunc in a run; one inside a loop or branch counts once.
    With `unfused`, the module before its groups were fused, all plans of their operators are searched.
    `weight_operands` are the positions of each PrimFunc's parameters that are weights, of `weight_bytes` in all.
    """
    from relaxc.schedules.ir.describe import bare
    from relaxc.schedules.plan import plan_of

    found: dict[tuple[str, str, str], Task] = {}
    untunable: list[Untunable] = []
    written: dict[str, int] = {}
    shares = _shares(report, calls, target)
    for row in report:
        name, key = row["function"], (row["workload"], row["dtype"], row["shapes"]) if "workload" in row else None
        weight = max(1, calls.get(name, 1))
        if key in found:
            found[key] = _merged(found[key], weight, weight_operands.get(name, ()))
            continue
        made = _task(bare(module[name]), row, weight, spec, target, rules, shares.get(name, 0.0))
        if isinstance(made, str):
            untunable.append(Untunable(name, row["rule"], made))
        elif key is not None:
            operands = weight_operands.get(name, ())
            made = replace(made, weight_operands=operands, weight_bytes=weight_bytes)
            plan = None if unfused is None else plan_of(module[name])
            found[key] = made if plan is None else _planned(made, plan, unfused, target)
            written[made.workload] = row["written_bytes"]
    sizes = {
        task.workload: Sizes(written[task.workload], _operand_bytes(module[task.name], task.weight_operands))
        for task in found.values()
    }
    return FoundTasks(tuple(found.values()), tuple(untunable), sizes)


def _planned(task: Task, plan: Plan, unfused: Any, target: Any) -> Task:
    """The task over all plans of its operator; as it was where its kernel cannot be emitted anew."""
    import tvm

    from relaxc.schedules.cpu import planning, regroup
    from relaxc.schedules.hardware import cpu_of

    group = regroup.group_of(unfused, task.name)
    if group is None:
        return task
    plans = list(dict.fromkeys([plan, *planning.space(plan.operator, cpu_of(target))]))
    rules = [rule for name in dict.fromkeys(each.template for each in plans) if (rule := planning.template(name))]
    templates = tuple(Named(rule.name, rule.version, _parameters(plans, rule.name)) for rule in rules)
    names = sorted({name for named in templates for name in named.parameters})
    wide = replace(task, templates=templates, space=dict.fromkeys([TEMPLATE, *names], ()))
    points = tuple({**wide.point(each.template, each.parameters)} for each in plans)
    points = tuple(point for at, point in enumerate(points) if point not in points[:at])
    return replace(
        wide,
        default=points[0],
        space={name: tuple(sorted({point[name] for point in points})) for name in wide.space},
        points=points,
        operator=plan.operator.key(),
        group_json=tvm.ir.save_json(group),
    )


def _parameters(plans: Sequence[Plan], template: str) -> tuple[str, ...]:
    return tuple(next(plan for plan in plans if plan.template == template).parameters)


def _operand_bytes(func: Any, positions: Sequence[int]) -> int:
    """The bytes of the buffers at these positions, whose sizes are known."""
    from relaxc.schedules.ir import tir
    from relaxc.schedules.ir.dtypes import dtype_bits

    operands = [func.params[position] for position in positions]
    return sum(prod(tir.as_int(size) or 0 for size in o.shape) * dtype_bits(str(o.dtype)) // 8 for o in operands)


def _merged(task: Task, weight: int, operands: Collection[int]) -> Task:
    """The task of one more PrimFunc; where that gets no weights, those are none of the task's."""
    both = tuple(position for position in task.weight_operands if position in operands)
    return replace(task, weight=task.weight + weight, weight_operands=both)


def _shares(report: Sequence[Mapping[str, Any]], calls: Mapping[str, int], target: Any) -> dict[str, float]:
    """The part of the estimated time that each workload takes, by the name of each function that has it."""
    times: dict[str, float] = {}
    known = [row for row in report if all(isinstance(row.get(name), int) for name in _SIZES)]
    for row in known:
        spent = calls.get(row["function"], 1) * estimated_cycles(row["flops"], row["bytes"], target)
        times[row["workload"]] = times.get(row["workload"], 0.0) + spent
    whole = sum(times.values()) or 1.0
    return {row["function"]: times[row["workload"]] / whole for row in known}


def _task(
    func: Any,
    row: Mapping[str, Any],
    weight: int,
    spec: TargetSpec,
    target: Any,
    rules: Mapping[str, Any],
    share: float,
) -> Task | str:
    """The task of one row, or why there is none."""
    import tvm

    from relaxc.schedules.template import Declined, Points

    rule = rules.get(row["rule"])
    if rule is None:
        return "it came scheduled"
    found = rule.searched(func, target)
    space = Points({}) if isinstance(found, Declined) or found.size < 2 else found
    others = _others(rule, func, target, rules) if spec.kind == "cuda" else {}
    fixed = not space.values and not others
    if fixed and (spec.kind != "llvm" or (rule.name != _LAST and share <= _NOTABLE)):
        return "its template has no parameters to choose"
    if not all(isinstance(row[name], int) for name in _SIZES):
        return "its sizes are known at run time only; --shape fixes them"
    untuned = How(rule.name, rule.version, dict(row["parameters"]))
    task = Task(
        workload=row["workload"],
        name=row["function"],
        func_json=tvm.ir.save_json(func),
        target=spec,
        dtype=row["dtype"],
        rule=rule.name,
        version=rule.version,
        default=dict(row["parameters"]),
        space=dict(space.values),
        points=space.listed,
        flops=float(row["flops"]),
        bytes=float(row["bytes"]),
        weight=weight,
        shapes=row["shapes"],
        operator_digest=row["operator"],
    )
    return generic(task, untuned) if fixed else _widened(task, others, rules)


def _others(rule: Any, func: Any, target: Any, rules: Mapping[str, Any]) -> dict[str, tuple[Parameters, ...]]:
    """The points of the other templates that take a PrimFunc: where one goes first, that is a guess.

    Those of an older architecture's instructions are left out beside one of a newer: they multiply at half the rate.
    """
    from relaxc.schedules.template import Declined

    if rule.alone:
        return {}
    found = {
        other.name: other.searched(func, target)
        for other in rules.values()
        if other.name != rule.name and other.since and rule.since in ("", other.since)
    }
    return {name: points.listed for name, points in found.items() if not isinstance(points, Declined)}


def _widened(task: Task, others: Mapping[str, tuple[Parameters, ...]], rules: Mapping[str, Any]) -> Task:
    """The task with the points of other templates."""
    if not others:
        return task
    spaces = {task.rule: task.points or (task.default,), **others}
    templates = tuple(Named(name, rules[name].version, tuple(points[0])) for name, points in spaces.items())
    names = sorted({name for named in templates for name in named.parameters})
    wide = replace(task, templates=templates, space=dict.fromkeys([TEMPLATE, *names], ()))
    points = tuple(wide.point(name, point) for name, listed in spaces.items() for point in listed)
    space = {name: tuple(sorted({point[name] for point in points})) for name in wide.space}
    return replace(wide, default=points[0], space=space, points=points)
