"""What a record says beside its key: what was measured, where, when, by which versions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from relaxc.service.machine import version_of
from relaxc.service.records.record import Record, RecordTarget

if TYPE_CHECKING:
    from relaxc.service.tuning.run import Candidate

__all__ = ["Provenance", "versions"]


def versions() -> dict[str, str]:
    """Return the versions that a record names; a checkout that is only on the path has none."""
    return {name: version_of(of) or "not installed" for name, of in (("relaxc", "relaxc"), ("tvm", "apache-tvm"))}


@dataclass(frozen=True, slots=True)
class Provenance:
    """What all records of one run share; `host` is the model of the CPU or GPU, or how it was reached."""

    target: RecordTarget
    threads: int
    seed: int
    host: str

    def record(self, candidate: Candidate) -> Record:
        """Return the record of a candidate that has a verdict."""
        task, verdict, limit_s = candidate.task, candidate.verdict, candidate.start.limit_s
        assert verdict is not None
        how = task.how(verdict.point)
        return Record(
            workload=task.workload,
            target=self.target,
            rule=how.rule,
            version=how.version,
            dtype=task.dtype,
            shapes=task.shapes,
            parameters=dict(how.parameters),
            trace=how.trace,
            operator=task.operator_digest,
            seconds=float(f"{verdict.seconds:.6g}"),
            untuned_s=float(f"{verdict.untuned_s:.6g}"),
            roofline=round(limit_s / verdict.seconds, 4) if limit_s else None,
            flops=int(task.flops),
            bytes=int(task.bytes),
            threads=self.threads,
            trials=candidate.progress.trials,
            seed=self.seed,
            host=self.host,
            date=datetime.now(UTC).date().isoformat(),
            **versions(),
        )
