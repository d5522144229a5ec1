"""The planner of a compile: for each heavy operator the plan that its record holds, else the default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relaxc.service.lowering.replay import Records, unfit
from relaxc.service.lowering.target import to_tvm
from relaxc.service.records.record import Record, RecordTarget, Workload
from relaxc.service.request import TargetSpec

if TYPE_CHECKING:
    from relaxc.schedules.operators import Operator
    from relaxc.schedules.plan import Plan

__all__ = ["RecordPlanner", "planner_for", "record_behind"]


@dataclass
class RecordPlanner:
    """Looks an operator up in `records` before layouts are chosen, so that a record decides algorithm and layout too.

    What will be fused behind it is not known yet: any record of the operator will do. `settled` is asked again by then.
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

    def plan(self, operator: Operator) -> Plan:
        """See `relaxc.schedules.plan.Planner`."""
        from relaxc.schedules.cpu import planning

        passed_over = self.passed_over[operator.digest] = []
        for record in self.found(operator):
            reason = self._unfit(operator, record)
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
        return tuple(self.records.of_operator(operator.digest, operator.dtype, self._target))

    def settled(self, plan: Plan, workload: Workload) -> Plan:
        """Return the plan of a kernel that is fused by now: its own record's, where that has the same layout."""
        from relaxc.schedules.cpu import planning
        from relaxc.schedules.plan import DEFAULT

        if self.records is None or plan.origin == DEFAULT:
            return plan
        for record in self.records.lookup(workload, self._target):
            if record.rule == plan.template and not self._unfit(plan.operator, record):
                own = planning.planned(plan.operator, record.rule, record.parameters, self._cpu, record.digest)
                if planning.layout_of(own) == planning.layout_of(plan):
                    return own
        return plan

    def _unfit(self, operator: Operator, record: Record) -> str:
        from relaxc.schedules.cpu import planning

        reason = unfit(record, planning.template(record.rule), self.spec.cores)
        return reason or planning.refusal(operator, record.rule, record.parameters, self._cpu)


def planner_for(spec: TargetSpec, records: Records | None, *, small_weights: bool = False) -> RecordPlanner | None:
    """Return the planner for a target; None for a GPU, whose templates follow no plans, nor enlarge weights."""
    return RecordPlanner(spec, records, small_weights) if spec.kind == "llvm" else None


def record_behind(planner: RecordPlanner | None, plan: Plan) -> Record | None:
    """Return the record that a plan came from."""
    found = planner.found(plan.operator) if planner is not None else ()
    return next((record for record in found if record.digest == plan.origin), None)
