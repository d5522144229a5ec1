"""Records that no compile will use any more, with the reason."""

from __future__ import annotations

from collections.abc import Mapping

from relaxc.service.records.record import Record, RecordSet, Workload

__all__ = ["current_versions", "stale"]

Versions = Mapping[str, Mapping[str, int]]
"""The version of each rule by its name, by target kind."""


def current_versions() -> Versions:
    """Those of this relaxc. Imports tvm."""
    from relaxc.schedules import cpu, cuda
    from relaxc.schedules.metaschedule.traces import METASCHEDULE

    versions = {
        kind: {rule.name: rule.version for rule in rules} for kind, rules in (("llvm", cpu.RULES), ("cuda", cuda.RULES))
    }
    versions["llvm"][METASCHEDULE.name] = METASCHEDULE.version
    return versions


def stale(records: RecordSet, versions: Versions) -> list[tuple[Record, str]]:
    """Return records of rules that are gone or have a later version, those whose kernel an older relaxc
    named otherwise, and those that a faster one of another rule hides.

    A record of a later version than ours was made by a newer relaxc, and is left alone.
    """
    found: list[tuple[Record, str]] = []
    for record in records:
        current = versions.get(record.target.kind, {}).get(record.rule)
        if current is None:
            found.append((record, f"there is no rule {record.rule}"))
        elif record.version < current:
            found.append((record, f"{record.rule} has version {current} now, the record is for {record.version}"))
        elif not record.operator:
            found.append((record, "an older relaxc named its kernel otherwise: tune again"))
        elif (winner := _winner(record, records, versions)) is not record:
            found.append((record, f"{winner.rule} is faster: record {winner.digest}"))
    return found


def _winner(record: Record, records: RecordSet, versions: Versions) -> Record:
    """The record that a compile uses for this one's workload."""
    rules = versions.get(record.target.kind, {})
    same = records.lookup(Workload(record.workload, record.dtype, record.shapes), record.target)
    rivals = (other for other in same if other.threads == record.threads)
    return next(other for other in rivals if other is record or rules.get(other.rule) == other.version)
