"""A plan: how one heavy operator is computed, decided before layouts are, and read by the template that emits it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.operators import Operator, operator_from

__all__ = ["DEFAULT", "PLAN", "Plan", "Planner", "plan_of"]

PLAN = "relaxc.plan"
"""The annotation of the block that contracts: it stays there when kernels are fused."""

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Plan:
    """An operator with the template that computes it, and all parameters of that: of layout, packing and loops alike.

    `cycles` is the estimate for the hardware row; `origin` is `default`, or the digest of the record it came from.
    """

    operator: Operator
    template: str
    parameters: Mapping[str, int]
    cycles: float = 0.0
    origin: str = DEFAULT

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", dict(sorted(self.parameters.items())))

    def __hash__(self) -> int:
        return hash(self.to_json())

    def to_json(self) -> str:
        """Return the plan as one line of JSON, the form in which it travels; `from_json` is its inverse."""
        data = {"operator": self.operator.key(), "template": self.template, "parameters": dict(self.parameters)}
        return json.dumps({**data, "cycles": round(self.cycles), "origin": self.origin}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan that `to_json` described."""
        data = json.loads(text)
        operator = operator_from(data["operator"])
        return Plan(operator, data["template"], data["parameters"], float(data["cycles"]), data["origin"])


class Planner(Protocol):
    """Whom a layout pass asks; it knows the hardware row and may know records."""

    def plan(self, operator: Operator) -> Plan:
        """Return the plan for `operator`."""
        ...


def plan_of(func: PrimFunc) -> Plan | None:
    """Return the plan that a PrimFunc carries, if one of its blocks does."""
    for realize in block_realizes(func):
        text = realize.block.annotations.get(PLAN)
        if text is not None:
            return Plan.from_json(str(text))
    return None
