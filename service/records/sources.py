"""Which records a compile uses: those it was given, before those that come with relaxc."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relaxc.service.config import settings
from relaxc.service.records.files import read
from relaxc.service.records.record import Record, RecordSet, RecordTarget, Workload
from relaxc.service.request import CompileOptions, TargetSpec

__all__ = ["SHIPPED", "RecordsInForce", "joined", "places", "records_digest", "records_for"]

SHIPPED = Path(__file__).resolve().parents[2] / "tuning_logs"
"""The records that come with relaxc."""


@dataclass(frozen=True)
class RecordsInForce:
    """Sets of records for one target, asked in order: what was measured for the caller goes before what we ship."""

    layers: tuple[RecordSet, ...]

    def lookup(self, workload: Workload, target: RecordTarget) -> tuple[Record, ...]:
        """Return the records for this workload, the ones to prefer first."""
        return tuple(record for layer in self.layers for record in layer.lookup(workload, target))

    def of_operator(self, operator: str, dtype: str, target: RecordTarget) -> tuple[Record, ...]:
        """Return the records for this operator, the ones to prefer first."""
        return tuple(record for layer in self.layers for record in layer.of_operator(operator, dtype, target))

    @property
    def digest(self) -> str:
        """The SHA-256 of all that they say: equal records have equal digests, wherever they were read from."""
        return hashlib.sha256("\n".join(layer.digest for layer in self.layers).encode()).hexdigest()


def records_for(spec: TargetSpec, options: CompileOptions) -> RecordsInForce:
    """Return the records that a compile for `spec` with these options may use. Raise InvalidRecords. Imports no tvm."""
    target = RecordTarget.of(spec)
    shipped = [SHIPPED] if options.default_records and SHIPPED.exists() else []
    layers = [_merged(places(options), target), _merged(shipped, target)]
    return RecordsInForce(tuple(layer for layer in layers if len(layer)))


def records_digest(spec: TargetSpec, options: CompileOptions) -> str:
    """Return the digest of what `records_for` gives; of several parts, of all of theirs."""
    return joined([records_for(part, options).digest for part in spec.each])


def joined(digests: Sequence[str]) -> str:
    """Return the digest that stands for the parts' digests: of a single one itself."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def places(options: CompileOptions) -> list[Path]:
    """Return the files and folders of records that were given, by the options or by RELAXC_RECORDS."""
    setting = settings().records if options.default_records else None
    return [*map(Path, options.records), *([] if setting is None else [setting])]


def _merged(places: Sequence[Path], target: RecordTarget) -> RecordSet:
    return RecordSet(record for place in places for record in read(place)).for_target(target)
