"""What tuning found, as values: a record, the target it is for, and sets of records that merge and are looked up."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from relaxc.service import machine
from relaxc.service.request import TargetSpec, canonical_json

__all__ = ["MAY_LACK", "Record", "RecordKey", "RecordSet", "RecordTarget", "Workload"]

_HASH = re.compile(r"[0-9a-f]{16}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
MAY_LACK = frozenset({"trace", "operator"})
"""Fields that are not written where they are empty."""

_MAX_TEXT = 4096
_MAX_TRACE = 64 << 10

# The widest vector extension that a CPU target has, widest first, and its bits.
_VECTORS = (("avx512f", "avx512", 512), ("avx2", "avx2", 256), ("avx", "avx", 256), ("sve", "sve", 128))


@dataclass(frozen=True, slots=True)
class Workload:
    """A kernel as records know it: the digest of its canonical form, its dtypes and shapes for people.

    `operator` is the digest of what a plan is about, the kernel without what is fused behind it; of one that has no
    plan it is `digest` again.
    """

    digest: str
    dtype: str
    shapes: str
    operator: str = ""


@dataclass(frozen=True, slots=True, order=True)
class RecordTarget:
    """What must be equal for a record to be of use: a CPU and its widest vectors, or a CUDA architecture.

    `mcpu` is the micro-architecture as far as it is known (`sapphirerapids`, not the `x86-64-v4` that LLVM is told):
    what is fastest depends on it. Raises ValueError for what is no such thing.
    """

    kind: str
    mcpu: str = ""
    vector: str = ""
    arch: str = ""

    def __post_init__(self) -> None:
        wanted = {"llvm": (self.mcpu, self.vector), "cuda": (self.arch,)}.get(self.kind)
        empty = (self.arch,) if self.kind == "llvm" else (self.mcpu, self.vector)
        if wanted is None or not all(map(_WORD.fullmatch, wanted)) or any(empty):
            raise ValueError(f"{self} is no target of records")

    @staticmethod
    def of(spec: TargetSpec) -> RecordTarget:
        """Return the target of the records that a compile for `spec` may use."""
        if spec.kind == "cuda":
            return RecordTarget("cuda", arch=spec.arch)
        return RecordTarget("llvm", machine.family_of(spec) or spec.triple.partition("-")[0], _vector(spec))

    @property
    def name(self) -> str:
        """The name of its folder: `llvm-sapphirerapids-avx512`, `cuda-sm_90a`."""
        return "-".join(filter(None, (self.kind, self.mcpu, self.vector, self.arch)))

    def to_dict(self) -> dict[str, str]:
        """Return the target as JSON values, without what its kind does not have."""
        return {name: value for name, value in asdict(self).items() if value}


def _vector(spec: TargetSpec) -> str:
    usual = "neon" if spec.triple.startswith("aarch64") else "sse"
    name, bits = next(((name, bits) for feature, name, bits in _VECTORS if feature in spec.features), (usual, 128))
    return name if spec.vector_bits >= bits else f"{name}-{spec.vector_bits}"  # told to use shorter ones


RecordKey = tuple[str, RecordTarget, str, int, str, int]
"""(workload, target, rule, version, dtype, threads): of two records with one key only the faster is kept."""


@dataclass(frozen=True, slots=True)
class Record:
    """The fastest point of a template that was found for a workload on a target, and where it comes from.

    `parameters` are what the rule takes; of MetaSchedule's generic space (`rule` is `metaschedule`) they are empty and
    `trace` holds the schedule as JSON. `seconds` is the median time of one call, `untuned_s` that of the default
    parameters in the same comparison, `roofline` the share of the machine's limit that was reached. `threads`,
    `trials`, `seed`, `host` (model name), `date`, `tvm` and `relaxc` (versions) say how it was found.
    `operator` is that of the workload, by which plans find it; empty in what an older relaxc wrote, which named kernels
    otherwise: no compile finds that one.
    Raises ValueError for values that a record cannot have.
    """

    workload: str
    target: RecordTarget
    rule: str
    version: int
    dtype: str
    shapes: str
    parameters: Mapping[str, int]
    seconds: float
    untuned_s: float | None
    roofline: float | None
    flops: int
    bytes: int
    threads: int
    trials: int
    seed: int
    host: str
    date: str
    tvm: str
    relaxc: str
    trace: str = ""
    operator: str = ""

    def __post_init__(self) -> None:
        texts = (self.dtype, self.shapes, self.host, self.tvm, self.relaxc)
        wrong = {
            "workload": not _HASH.fullmatch(self.workload),
            "operator": bool(self.operator) and not _HASH.fullmatch(self.operator),
            "rule": not _WORD.fullmatch(self.rule),
            "counts": min(self.version, self.flops, self.bytes, self.threads, self.trials, self.seed) < 0,
            "seconds": not (isfinite(self.seconds) and self.seconds > 0),
            "untuned_s": self.untuned_s is not None and not (isfinite(self.untuned_s) and self.untuned_s > 0),
            "roofline": self.roofline is not None and not (isfinite(self.roofline) and self.roofline >= 0),
            "date": not _DATE.fullmatch(self.date),
            "trace": len(self.trace) > _MAX_TRACE or not self.trace.isprintable(),
            "text": any(len(text) > _MAX_TEXT or not text.isprintable() for text in texts),
        }
        if any(wrong.values()):
            raise ValueError(f"a record cannot have this: {', '.join(name for name, is_so in wrong.items() if is_so)}")
        object.__setattr__(self, "parameters", dict(sorted(self.parameters.items())))

    def __hash__(self) -> int:
        return hash(self.to_json())

    @property
    def key(self) -> RecordKey:
        """What must fit for it to be used."""
        return self.workload, self.target, self.rule, self.version, self.dtype, self.threads

    @property
    def digest(self) -> str:
        """16 hex digits that name this record, measured time and all."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @property
    def gain(self) -> float | None:
        """How many times faster than untuned it is."""
        return None if self.untuned_s is None else self.untuned_s / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values, without an empty trace or operator."""
        data = {name: getattr(self, name) for name in self.__slots__ if name not in MAY_LACK or getattr(self, name)}
        return {**data, "target": self.target.to_dict(), "parameters": dict(self.parameters)}

    def to_json(self) -> str:
        """Return one line of canonical JSON."""
        return canonical_json(self.to_dict())

    def beats(self, other: Record) -> bool:
        """Return whether this is kept of two with one key: the faster; else that of the longer search; else by text."""
        return (self.seconds, -self.trials, self.to_json()) < (other.seconds, -other.trials, other.to_json())


class RecordSet:
    """Records by key, each the fastest of its key; sets merge in any order to the same set."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._by_key: dict[RecordKey, Record] = {}
        for record in records:
            kept = self._by_key.get(record.key)
            if kept is None or record.beats(kept):
                self._by_key[record.key] = record

    def __iter__(self) -> Iterator[Record]:
        """In the order of their files: by target, rule, workload and version."""
        return iter(sorted(self._by_key.values(), key=_order))

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, record: object) -> bool:
        return isinstance(record, Record) and self._by_key.get(record.key) == record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordSet) and self._by_key == other._by_key

    __hash__ = None  # type: ignore[assignment]  # a set of records is compared, and named by its digest

    def __or__(self, other: RecordSet) -> RecordSet:
        """The merged set: commutative, associative, idempotent."""
        return RecordSet([*self, *other])

    def get(self, key: RecordKey) -> Record | None:
        """Return the record with exactly this key."""
        return self._by_key.get(key)

    def lookup(self, workload: Workload, target: RecordTarget) -> tuple[Record, ...]:
        """Return the records for this workload on this target, whatever their rule and version, the fastest first."""
        found = self._by_workload.get((workload.digest, target), ())
        fitting = [r for r in found if (r.dtype, r.shapes) == (workload.dtype, workload.shapes)]
        return tuple(sorted(fitting, key=lambda record: (record.seconds, record.to_json())))

    def of_operator(self, operator: str, dtype: str, target: RecordTarget) -> tuple[Record, ...]:
        """Return the records for this operator on this target, whatever is fused behind it, the fastest first."""
        found = [r for r in self._by_operator.get((operator, target), ()) if r.dtype == dtype]
        return tuple(sorted(found, key=lambda record: (record.seconds, record.to_json())))

    def for_target(self, target: RecordTarget) -> RecordSet:
        """Return the records for this target."""
        return RecordSet(record for record in self if record.target == target)

    @property
    def targets(self) -> list[RecordTarget]:
        """The targets that there are records for."""
        return sorted({record.target for record in self})

    @cached_property
    def _by_workload(self) -> dict[tuple[str, RecordTarget], list[Record]]:
        return self._indexed("workload")

    @cached_property
    def _by_operator(self) -> dict[tuple[str, RecordTarget], list[Record]]:
        return self._indexed("operator")

    def _indexed(self, name: str) -> dict[tuple[str, RecordTarget], list[Record]]:
        found: dict[tuple[str, RecordTarget], list[Record]] = {}
        for record in self:
            found.setdefault((getattr(record, name), record.target), []).append(record)
        return found

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all lines: equal sets have equal digests, wherever they were read from."""
        return hashlib.sha256(self.to_lines().encode()).hexdigest()

    def to_lines(self) -> str:
        """Return the form of the files: sorted, a record a line."""
        return "".join(f"{record.to_json()}\n" for record in self)


def _order(record: Record) -> tuple[str, str, str, int, str, int]:
    return record.target.name, record.rule, record.workload, record.version, record.dtype, record.threads
