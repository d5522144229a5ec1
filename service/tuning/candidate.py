"""One candidate of a tuning that runs on another machine, built for it here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaxc.service.request import TargetSpec
from relaxc.service.tuning.measure import builder_worker, far_builders

__all__ = ["build"]


def build(question: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Return the answer to what `FarBuilders` asks for. Files go into `workdir`."""
    out = workdir / "candidate.so"
    spec = TargetSpec.from_dict(question["target"])
    rules = builder_worker.known_rules(spec.kind, tuple(question["rules"]))
    built = builder_worker.build(far_builders.asked_build(question, out), spec, rules)
    return far_builders.packed(built, out)
