"""The parts of an artifact for several CPUs or GPUs: a library for each, in a section of the file but for the first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaxc.service.artifact import decode
from relaxc.service.errors import ArtifactCorrupt
from relaxc.service.request import TargetSpec, canonical_json

__all__ = ["PART_SECTION", "Part", "decoded"]

PART_SECTION = ".relaxc.part.{index}"
"""The name of a part's section; the first part is the file's own code."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a manifest says of a part beside the first: where its library is, and all in which it differs.

    `weights` are the places of its weights in the file's table, in the order in which its `main` takes them. `tuning`
    is the digest of the records that it was compiled with.
    """

    section: str
    weights: tuple[int, ...]
    target: TargetSpec
    tuning: str
    schedule: Sequence[Mapping[str, Any]] = ()
    passes: Mapping[str, Any] = field(default_factory=dict)
    verification: Mapping[str, Any] | str = ""

    def __post_init__(self) -> None:
        for name in ("schedule", "passes", "verification"):
            object.__setattr__(self, name, json.loads(canonical_json(getattr(self, name))))

    def to_dict(self) -> dict[str, Any]:
        """Return the part as JSON values."""
        return {
            "section": self.section,
            "weights": list(self.weights),
            "target": self.target.to_dict(),
            "tuning": self.tuning,
            "schedule": self.schedule,
            "passes": self.passes,
            "verification": self.verification,
        }


def decoded(values: list[Any], weights: int) -> tuple[Part, ...]:
    """Return the parts that `to_dict` described, of a file of so many weights. Raise ArtifactCorrupt."""
    return tuple(_part(value, f"others[{index}]", weights) for index, value in enumerate(values))


def _part(value: Any, where: str, weights: int) -> Part:
    fields = decode.Fields(value, where)
    part = Part(
        section=fields.take("section", str),
        weights=fields.integers("weights"),
        target=decode.target(fields.take("target", dict), f"{where}.target"),
        tuning=fields.take("tuning", str),
        schedule=decode.schedule(fields.take("schedule", list)),
        passes=fields.take("passes", dict),
        verification=decode.verification(fields.take("verification", (dict, str))),
    )
    fields.done()
    if any(not 0 <= index < weights for index in part.weights):
        raise ArtifactCorrupt(f"{where} names weights that are not there")
    return part
