"""The planner of a compile: for each heavy operator the plan that its record holds, else the default."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from relaxc.service.lowering.replay import Records, unfit
from relaxc.service.lowering.target import to_tvm
from relaxc.service.records.record import Record, RecordTarget, Workload
from relaxc.service.request import TargetSpec

if TYPE_CHECKING:
    from relaxc.schedules.operators import Operator
    from relaxc.schedules.plan import Plan

__all__ = ["RecordPlanner", "planner_for", "record_behind", "workload_of_operator"]


def workload_of_operator(operator: Operator) -> Workload:
    """Return the operator as records know it."""
    return Workload(operator.digest, operator.dtype, operator.shapes)


@dataclass
class RecordPlanner:
    """Looks an operator up in `records` before layouts are chosen, so that a record decides algorithm and layout too.

    It remembers which operators it was asked about: the default plan does not depend on the epilogue and does not name
    it, so that kernels which differ in nothing else stay one until they are fused.
    """

    spec: TargetSpec
    records: Records | None = None
    small_weights: bool = False
    """Whether plans whose weights take more room than the model's are declined."""
    passed_over: dict[str, list[list[str]]] = field(default_factory=dict)
    """[record, reason] of records that were found for an operator and do not fit, by its digest."""

    def __post_init__(self) -> None:
        from relaxc.schedules.hardware import cpu_of

        self._target = RecordTarget.of(self.spec)
        self._cpu = cpu_of(to_tvm(self.spec))
        self._asked: dict[Operator, dict[Operator, None]] = {}

    def plan(self, operator: Operator) -> Plan:
        """See `relaxc.schedules.plan.Planner`."""
        from relaxc.schedules.cpu import planning

        self._asked.setdefault(operator.bare(), {})[operator] = None
        passed_over = self.passed_over[operator.digest] = []
        for record in self.found(operator):
            reason = unfit(record, planning.template(record.rule), self.spec.cores)
            reason = reason or planning.refusal(operator, record.rule, record.parameters, self._cpu)
            if self.small_weights and planning.enlarges(record.rule):
                reason = reason or "its weights take more room than the model's"
            if not reason:
                return planning.planned(operator, record.rule, record.parameters, self._cpu, record.digest)
            passed_over.append([record.digest, reason])
        return planning.default(operator, self._cpu, small_weights=self.small_weights)

    def found(self, operator: Operator) -> tuple[Record, ...]:
        """Return the records for this operator, the ones to prefer first."""
        if self.records is None:
            return ()
        return tuple(self.records.lookup(workload_of_operator(operator), self._target))

    def named(self, plan: Plan, function: str) -> Plan:
        """Return the plan with the epilogue of its operator, where it came without.

        Of several operators that differ in the epilogue alone, it is the one whose epilogue the name of the fused
        `function` tells of.
        """
        asked = list(self._asked.get(plan.operator, ()))
        if not asked or plan.origin != "default":
            return plan
        behind = _after_the_kernel(function)
        return replace(plan, operator=max(asked, key=lambda operator: _agree(operator.epilogue, behind)))


def _after_the_kernel(function: str) -> list[str]:
    """`fused_conv2d1_add2_relu` → add, relu."""
    parts = re.sub(r"\d+(?=_|$)", "", function.removeprefix("fused_").replace("conv2d", "conv")).split("_")
    kernel = next((i for i, part in enumerate(parts) if part in ("conv", "matmul", "pool2d")), 0)
    return parts[kernel + 1 :]


def _agree(epilogue: tuple[str, ...], behind: list[str]) -> tuple[int, int]:
    """How many operators of an epilogue a name has in this order, and minus how many it lacks."""
    names, count = [name.partition(".")[0] for name in epilogue], 0
    for name, other in zip(names, behind, strict=False):
        if not other.startswith(name[:4]):
            break
        count += 1
    return count, -(len(names) - count)


def planner_for(spec: TargetSpec, records: Records | None, *, small_weights: bool = False) -> RecordPlanner | None:
    """Return the planner for a target; None for a GPU, whose templates follow no plans, nor enlarge weights."""
    return RecordPlanner(spec, records, small_weights) if spec.kind == "llvm" else None


def plans_in(module: Any, planner: RecordPlanner | None) -> dict[str, Plan]:
    """Return the plans of a module's PrimFuncs by name, their operators with the epilogues that `planner` knows."""
    from tvm import tirx

    from relaxc.schedules.plan import plan_of

    functions = [(str(var.name_hint), func) for var, func in module.functions_items()]
    found = [(name, plan_of(func)) for name, func in functions if isinstance(func, tirx.PrimFunc)]
    plans = {name: plan for name, plan in found if plan is not None}
    return plans if planner is None else {name: planner.named(plan, name) for name, plan in plans.items()}


def record_behind(planner: RecordPlanner | None, plan: Plan) -> Record | None:
    """Return the record that a plan came from."""
    found = planner.found(plan.operator) if planner is not None else ()
    return next((record for record in found if record.digest == plan.origin), None)
