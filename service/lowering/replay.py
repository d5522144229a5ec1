"""What a record found, applied again: the same template with the parameters that won, or why they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from relaxc.service.lowering.apply import apply_rule

if TYPE_CHECKING:
    from relaxc.schedules.metaschedule.traces import Traced
    from relaxc.schedules.template import Rule, Schedule
    from relaxc.service.records.record import Record, RecordTarget, Workload

__all__ = ["Records", "Replay", "replay", "unfit"]


class Records(Protocol):
    """Where a compile looks records up: those for one workload on one target, the ones to prefer first."""

    def lookup(self, workload: Workload, target: RecordTarget) -> Sequence[Record]:
        """Any number of them, of any rule and version."""
        ...

    def of_operator(self, operator: str, dtype: str, target: RecordTarget) -> Sequence[Record]:
        """Those for this operator, whatever is fused behind it."""
        ...


class Named(Protocol):
    """A rule as far as records name it."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def version(self) -> int:
        """Return the version of the schedules that it makes."""
        ...


@dataclass
class Replay:
    """The schedule of the first record that fits, its rule and the record; [record, reason] of those before it."""

    schedule: Schedule | None = None
    rule: Rule | Traced | None = None
    record: Record | None = None
    passed_over: list[list[str]] = field(default_factory=list)


def replay(found: Sequence[Record], func: Any, target: Any, rules: Sequence[Rule], *, cores: int | None) -> Replay:
    """Apply the first of `found` whose rule is one of `rules`, in the record's version, and still takes its parameters.

    A record with a trace is of MetaSchedule's generic space, which stands beside the rules of a CPU.

    On a CPU it must have been timed on as many threads as the target has `cores`: how the work is best divided depends
    on it. None does not ask.

    Where the rule stands among `rules` does not matter: the record was measured, their order is a guess.
    """
    from relaxc.schedules.metaschedule.traces import METASCHEDULE

    cpu = str(target.kind.name) == "llvm"
    by_name = {rule.name: rule for rule in rules}
    result = Replay()
    for record in found:
        rule = METASCHEDULE if record.rule == METASCHEDULE.name and cpu else by_name.get(record.rule)
        got = unfit(record, rule, cores) or _apply(record, rule, func, target)
        if not isinstance(got, str):
            result.schedule, result.rule, result.record = got, rule, record
            return result
        result.passed_over.append([record.digest, got])
    return result


def unfit(record: Record, rule: Named | None, cores: int | None) -> str:
    """Return why a record is of no use whatever its parameters are; empty if it may be. `rule` is the one it names."""
    if cores is not None and record.threads != cores:
        return f"it is for {record.threads} threads, the target has {cores}"
    if rule is None:
        return f"there is no rule {record.rule} for this target"
    if record.version != rule.version:
        return f"{record.rule} has version {rule.version}, the record is for {record.version}"
    return ""


def _apply(record: Record, rule: Rule | Traced | None, func: Any, target: Any) -> Schedule | str:
    from relaxc.schedules.metaschedule.traces import Traced
    from relaxc.schedules.template import Declined, NoSuchPoint

    assert rule is not None  # `unfit` has seen it
    if isinstance(rule, Traced):
        replayed = rule.replay(func, record.trace)
        return f"{record.rule}: {replayed.reason}" if isinstance(replayed, Declined) else replayed
    if record.trace:
        return f"{record.rule} replays no traces"
    try:
        made = apply_rule(rule, func, target, record.parameters)
    except NoSuchPoint as error:
        return f"{record.rule} no longer takes its parameters: {error}"
    return f"{record.rule} declines: {made}" if isinstance(made, str) else made
