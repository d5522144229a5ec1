"""A schedule for every PrimFunc: its record, else the first rule that takes it, else the fallback; with a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relaxc.service.dump import Dump, no_dump
from relaxc.service.errors import CompileFailed, in_one_line
from relaxc.service.lowering.apply import SCHEDULED, apply_rule, finish
from relaxc.service.lowering.planner import RecordPlanner, record_behind
from relaxc.service.lowering.replay import Records, replay
from relaxc.service.lowering.target import to_tvm
from relaxc.service.records.record import Record, RecordTarget, Workload
from relaxc.service.request import TargetSpec

if TYPE_CHECKING:
    from relaxc.schedules.metaschedule.traces import Traced
    from relaxc.schedules.plan import Plan
    from relaxc.schedules.template import Parameters, Rule

__all__ = ["Scheduled", "points_of", "schedule"]


@dataclass(frozen=True)
class Scheduled:
    """A module whose every PrimFunc is scheduled, and for each of them a row of `report`.

    A row: `function`; `nodes`, those of the model that it computes; `kernel` (`triton: PLUGIN.FUNCTION`) where it is a
    plugin's; `workload` (the digest of its `Kernel`), `operator` (that of what its plan is about, else the same),
    `dtype` and `shapes` as records have them; the plan: `rule`, its `version` and `parameters`, by which the template
    makes the kernel again; `source` (`record`, `rule`, or `given` for a PrimFunc that came scheduled);
    `record`, the one behind it (`digest`, `date`, `seconds`, `untuned_s`) or None; `passed_over`: [[record, reason], …]
    of records that were found and do not fit; `flops`, `bytes` and of them `written_bytes` (ints, or text in symbolic
    sizes); `declined`: [[rule, reason], …] of those asked before.
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
    planner: RecordPlanner | None = None,
) -> Scheduled:
    """Schedule every PrimFunc of `module` for `spec`; equal ones are scheduled once.

    Those with a plan follow it; `planner` is the one that the graph passes asked, and knows where it came from.

    At `opt_level` 0 only the fallback is asked, which is two rules on CUDA; from 2 on, exp, tanh, erf and the like
    become vectorizable polynomials on a CPU. Raise CompileFailed, with the PrimFunc's name, where a rule breaks.
    """
    from tvm import tirx

    dump("tir_before_schedule", lambda: module.script(show_meta=False))
    scheduler = _Scheduler(spec, opt_level, records, planner)
    functions = [(var, func) for var, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
    changed, report = {}, []
    for index, (var, func) in enumerate(functions):
        name = str(var.name_hint)
        changed[var], row = scheduler.schedule(name, func)
        report.append({"function": name, **row})
        if progress is not None:
            progress(index + 1, len(functions))
    module = module.clone()
    for var, func in changed.items():
        module.update_func(var, finish(func, spec, opt_level))
    dump("tir_after_schedule", lambda: module.script(show_meta=False))
    return Scheduled(module, report)


def points_of(func: Any, rule_name: str, spec: TargetSpec) -> int:
    """Return how many points the template `rule_name` has for `func`; 1 where there is nothing to tune."""
    from relaxc.schedules.ir.describe import bare
    from relaxc.schedules.template import Declined

    rule = next((rule for rule in _rules(spec, 2) if rule.name == rule_name), None)
    found = rule.points(bare(func), to_tvm(spec)) if rule is not None else None
    return 1 if found is None or isinstance(found, Declined) else found.size


def _rules(spec: TargetSpec, opt_level: int) -> Sequence[Rule]:
    from relaxc.schedules import cpu, cuda

    rules, fallbacks = (cuda.RULES, 2) if spec.kind == "cuda" else (cpu.RULES, 1)
    return rules[-fallbacks:] if opt_level == 0 else rules


def _rules_for(func: Any, rules: Sequence[Rule]) -> tuple[Sequence[Rule], dict[str, str]]:
    """The rules to ask for a PrimFunc, and what its row says besides: a Triton kernel has a rule of its own."""
    from relaxc.schedules.cuda.triton import Triton
    from relaxc.schedules.cuda.triton_call import call_of

    call = call_of(func)
    if call is None:
        return [rule for rule in rules if not isinstance(rule, Triton)], {}
    return [Triton()], {"kernel": f"triton: {call.name}"}


class _Scheduler:
    """Schedules one PrimFunc after another, and knows those that it has seen."""

    def __init__(
        self, spec: TargetSpec, opt_level: int, records: Records | None, planner: RecordPlanner | None = None
    ) -> None:
        self._planner = planner
        self._target = to_tvm(spec)
        self._record_target = RecordTarget.of(spec)
        self._cores = spec.cores if spec.kind == "llvm" else None
        self._rules = _rules(spec, opt_level)
        self._records = records if opt_level > 0 else None
        self._done: dict[str, list[tuple[Any, Any, dict[str, Any]]]] = {}

    def schedule(self, name: str, func: Any) -> tuple[Any, dict[str, Any]]:
        """Return the scheduled PrimFunc and its row, those of an equal one where there was one."""
        import tvm_ffi

        from relaxc.schedules.ir.describe import bare, kernel_of
        from relaxc.schedules.ir.instructions import instruction_of
        from relaxc.schedules.ir.work import work_of
        from relaxc.schedules.operators import BlockMatmul
        from relaxc.schedules.plan import plan_of
        from relaxc.service.records.workload import describe

        kernel, func, plan = kernel_of(func), bare(func), plan_of(func)
        workload = describe(func, kernel)
        for seen, result, row in self._done.setdefault(workload.digest, []):
            if tvm_ffi.structural_equal(seen, func):
                return result, {**row, "nodes": list(kernel.nodes)}
        try:
            result, row = self._choose(workload, func, plan)
            row = {"workload": workload.digest, "operator": workload.operator, **row}
            row |= {"dtype": workload.dtype, "shapes": workload.shapes}
            row |= {"instruction": instruction_of(result), **work_of(func).to_dict()}
            row |= {"flops": plan.operator.flops} if plan and isinstance(plan.operator, BlockMatmul) else {}
        except Exception as error:
            raise CompileFailed(f"PrimFunc {name} cannot be scheduled: {in_one_line(error)}", function=name) from error
        self._done[workload.digest].append((func, result, row))
        return result, {**row, "nodes": list(kernel.nodes)}

    def _choose(self, workload: Workload, func: Any, plan: Plan | None) -> tuple[Any, dict[str, Any]]:
        if func.attrs is not None and func.attrs.get(SCHEDULED):
            return func, _row("given")
        rules, named = _rules_for(func, self._rules)
        settled = plan if plan is None or self._planner is None else self._planner.settled(plan, workload)
        records = self._records if plan is None else None  # who planned has asked already
        found = records.lookup(workload, self._record_target) if records is not None else ()
        replayed = replay(found, func, self._target, rules, cores=self._cores)
        if (won := replayed.schedule) is not None:
            row = _row("record", replayed.rule, won.parameters, passed_over=replayed.passed_over)
            return won.func, {**row, **named, "record": _behind(replayed.record)}
        declined: list[list[str]] = []
        for rule in rules:
            own = settled if settled is not None and rule.name == settled.template else None
            chosen = own.parameters if own is not None and own is not plan else None
            result = apply_rule(rule, func, self._target, chosen)
            if not isinstance(result, str):
                row = _row("rule", rule, result.parameters, declined=declined, passed_over=replayed.passed_over)
                return result.func, row | named | ({} if own is None else self._origin(own))
            declined.append([rule.name, result])
        raise ValueError(f"every rule declined: {'; '.join(': '.join(pair) for pair in declined)}")

    def _origin(self, plan: Plan) -> dict[str, Any]:
        """Where a plan came from, and what was passed over, as the row has it."""
        passed = self._planner.passed_over.get(plan.operator.digest, []) if self._planner is not None else []
        record = record_behind(self._planner, plan)
        if record is None:
            return {"passed_over": passed}
        return {"source": "record", "declined": [], "record": _behind(record), "passed_over": passed}


def _row(
    source: str,
    rule: Rule | Traced | None = None,
    parameters: Parameters | None = None,
    *,
    declined: Sequence[list[str]] = (),
    passed_over: Sequence[list[str]] = (),
) -> dict[str, Any]:
    return {
        "rule": rule.name if rule else "given",
        "version": rule.version if rule else 0,
        "source": source,
        "record": None,
        "parameters": dict(parameters or {}),
        "declined": list(declined),
        "passed_over": list(passed_over),
    }


def _behind(record: Record | None) -> dict[str, Any] | None:
    """What a report says of a record: enough to find it again."""
    if record is None:
        return None
    names = ("digest", "date", "seconds", "untuned_s")
    return {name: getattr(record, name) for name in names}
