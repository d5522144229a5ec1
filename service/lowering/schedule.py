"""A schedule for every PrimFunc: its record, else the first rule that takes it, else the fallback; with a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from service.dump import Dump, no_dump
from service.errors import CompileFailed
from service.lowering.apply import SCHEDULED, apply_rule, finish
from service.lowering.target import to_tvm
from service.request import TargetSpec

if TYPE_CHECKING:
    from schedules.rule import Parameters, Rule

__all__ = ["Records", "Scheduled", "schedule"]

Records = Callable[[str, Any], "tuple[str, Parameters] | None"]
"""(workload hash, target) → the rule and the parameters that tuning found best, or None."""


@dataclass(frozen=True)
class Scheduled:
    """A module whose every PrimFunc is scheduled, and for each of them a row of `report`.

    A row: `function`; `workload` (structural hash: equal programs share it); `rule` and its `version`;
    `source` (`record`, `rule`, or `given` for a PrimFunc that came scheduled); `parameters`; `flops`, `bytes` and of
    them `written_bytes` (ints, or text in symbolic sizes); `declined`: [[rule, reason], …] of those asked before.
    """

    module: Any
    report: list[dict[str, Any]] = field(default_factory=list)


def schedule(
    module: Any,
    spec: TargetSpec,
    *,
    opt_level: int = 2,
    dump: Dump = no_dump,
    progress: Callable[[int, int], None] | None = None,
    records: Records | None = None,
) -> Scheduled:
    """Schedules every PrimFunc of `module` for `spec`; equal ones are scheduled once.

    At `opt_level` 0 only the fallback is asked; from 2 on, exp, tanh, erf and the like become vectorizable
    polynomials on a CPU. Raises CompileFailed, with the PrimFunc's name, where a rule breaks.
    """
    from tvm import tirx

    dump("tir_before_schedule", lambda: module.script(show_meta=False))
    target = to_tvm(spec)
    rules = _rules(spec, opt_level)
    functions = [(var, func) for var, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
    done: dict[str, list[tuple[Any, Any, dict[str, Any]]]] = {}
    changed, report = {}, []
    for index, (var, func) in enumerate(functions):
        name = str(var.name_hint)
        changed[var], row = _schedule_one(name, func, target, rules, records, done)
        report.append({"function": name, **row})
        if progress is not None:
            progress(index + 1, len(functions))
    module = module.clone()
    for var, func in changed.items():
        module.update_func(var, finish(func, spec, opt_level))
    dump("tir_after_schedule", lambda: module.script(show_meta=False))
    return Scheduled(module, report)


def _rules(spec: TargetSpec, opt_level: int) -> Sequence[Rule]:
    from schedules import cpu, cuda

    rules = cuda.RULES if spec.kind == "cuda" else cpu.RULES
    return rules[-1:] if opt_level == 0 else rules


def _schedule_one(
    name: str,
    func: Any,
    target: Any,
    rules: Sequence[Rule],
    records: Records | None,
    done: dict[str, list[tuple[Any, Any, dict[str, Any]]]],
) -> tuple[Any, dict[str, Any]]:
    """The scheduled PrimFunc and its row, from `done` where an equal one is there."""
    import tvm_ffi

    from schedules.analysis import work_of

    workload = f"{tvm_ffi.structural_hash(func) & (2**64 - 1):016x}"
    for seen, result, row in done.setdefault(workload, []):
        if tvm_ffi.structural_equal(seen, func):
            return result, row
    try:
        result, row = _choose(workload, func, target, rules, records)
        row = {"workload": workload, **row, **work_of(func).to_dict()}
    except Exception as error:
        raise CompileFailed(f"PrimFunc {name} cannot be scheduled: {_first_line(error)}", function=name) from error
    done[workload].append((func, result, row))
    return result, row


def _choose(
    workload: str, func: Any, target: Any, rules: Sequence[Rule], records: Records | None
) -> tuple[Any, dict[str, Any]]:
    if func.attrs is not None and func.attrs.get(SCHEDULED):
        return func, _row("given", None, {}, [])
    record = records(workload, target) if records is not None else None
    declined: list[list[str]] = []
    for rule in rules if record is None else [r for r in rules if r.name == record[0]]:
        result = apply_rule(rule, func, target, None if record is None else record[1])
        if isinstance(result, str):
            declined.append([rule.name, result])
            continue
        return result.func, _row("rule" if record is None else "record", rule, dict(result.parameters), declined)
    if record is not None:
        return _choose(workload, func, target, rules, None)
    raise ValueError(f"every rule declined: {'; '.join(': '.join(pair) for pair in declined)}")


def _row(source: str, rule: Rule | None, parameters: dict[str, int], declined: list[list[str]]) -> dict[str, Any]:
    return {
        "rule": rule.name if rule else "given",
        "version": rule.version if rule else 0,
        "source": source,
        "parameters": parameters,
        "declined": declined,
    }


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
