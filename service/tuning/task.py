"""A task: one PrimFunc of a model, and the template whose parameters are searched for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from relaxc.service.request import TargetSpec

if TYPE_CHECKING:
    from relaxc.schedules.template import Choices, Parameters

__all__ = ["CANDIDATE", "TEMPLATE", "How", "Named", "Task"]

CANDIDATE = "candidate"
TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class How:
    """What makes a kernel of a PrimFunc: a rule with a point, or, where `trace` is not empty, that trace."""

    rule: str
    version: int
    parameters: Parameters
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """A template that plans of an operator follow, with the names of its parameters."""

    rule: str
    version: int
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """What is tuned: picklable, and the same in every process.

    `func_json` is `tvm.ir.save_json` of the PrimFunc before it is scheduled. `rule` of `version` takes it;
    `default` are the parameters it has without tuning, `space` what each of them may be. `flops` and `bytes` are of
    one call, `weight` is how many calls of it the model makes. `shapes` is one line of buffer shapes, for the near fit
    and for people; `operator_digest` is that by which plans find its records; `sizes` gives symbolic dims, by name, the
    sizes to measure with. The parameters at the positions `weight_operands` are weights in every call, of
    `weight_bytes` that the model has in all.

    Where no template has a choice, `rule` is MetaSchedule's generic space, and a point has one value, `candidate`: 0 is
    `untuned`, and N the Nth of `traces`, which `generic.seeded` draws.

    What is searched for an `operator` are its plans, of every algorithm and layout: a point has the number of one of
    the `templates` and all their parameters, 0 for those of others; `points` lists them. Each candidate is emitted anew
    from `group_json`, the calls that the kernel is fused of.
    """

    workload: str
    name: str
    func_json: str
    target: TargetSpec
    dtype: str
    rule: str
    version: int
    default: Parameters
    space: Choices
    flops: float
    bytes: float
    weight: int
    shapes: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    weight_operands: tuple[int, ...] = ()
    weight_bytes: int = 0
    untuned: How | None = None
    traces: tuple[str, ...] = ()
    operator: Mapping[str, Any] = field(default_factory=dict)
    operator_digest: str = ""
    group_json: str = ""
    templates: tuple[Named, ...] = ()
    points: tuple[Mapping[str, int], ...] = ()

    @property
    def size(self) -> int:
        """Return how many points there are."""
        return len(self.points) or prod(map(len, self.space.values()))

    def has(self, point: Parameters) -> bool:
        """Return whether it is a point of the space."""
        if self.points:
            return dict(point) in self.points
        return set(point) == set(self.space) and all(value in self.space[name] for name, value in point.items())

    def point(self, rule: str, parameters: Parameters) -> dict[str, int]:
        """Return the point that a record of this rule with these parameters is about; the inverse of `how`."""
        numbers = [number for number, named in enumerate(self.templates) if named.rule == rule]
        if not numbers:
            return dict(parameters)
        return {TEMPLATE: numbers[0], **{name: parameters.get(name, 0) for name in self.space if name != TEMPLATE}}

    def how(self, point: Parameters) -> How:
        """Return what makes the candidate of a point."""
        if self.templates:
            named = self.templates[point[TEMPLATE]]
            return How(named.rule, named.version, {name: point[name] for name in named.parameters})
        if self.untuned is None:
            return How(self.rule, self.version, point)
        place = point[CANDIDATE]
        return How(self.rule, self.version, {}, self.traces[place - 1]) if place else self.untuned

    def func(self) -> Any:
        """Return the PrimFunc. Imports tvm."""
        import tvm

        return tvm.ir.load_json(self.func_json)
