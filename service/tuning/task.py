"""A task: one PrimFunc of a model, and the template whose parameters are searched for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from service.request import TargetSpec

if TYPE_CHECKING:
    from schedules.template import Choices, Parameters

__all__ = ["CANDIDATE", "How", "Task"]

CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class How:
    """What makes a kernel of a PrimFunc: a rule with a point, or, where `trace` is not empty, that trace."""

    rule: str
    version: int
    parameters: Parameters
    trace: str = ""


@dataclass(frozen=True)
class Task:
    """What is tuned: picklable, and the same in every process.

    `func_json` is `tvm.ir.save_json` of the PrimFunc before it is scheduled. `rule` of `version` takes it;
    `default` are the parameters it has without tuning, `space` what each of them may be. `flops` and `bytes` are of
    one call, `weight` is how many calls of it the model makes. `shapes` is one line of buffer shapes, for the near fit
    and for people; `sizes` gives symbolic dims, by name, the sizes to measure with. The parameters at the positions
    `weight_operands` are weights in every call, of `weight_bytes` that the model has in all.

    Where no template has a choice, `rule` is MetaSchedule's generic space, and a point has one value, `candidate`: 0 is
    `untuned`, and N the Nth of `traces`, which `generic.seeded` draws.
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

    def how(self, point: Parameters) -> How:
        """What makes the candidate of a point."""
        if self.untuned is None:
            return How(self.rule, self.version, point)
        place = point[CANDIDATE]
        return How(self.rule, self.version, {}, self.traces[place - 1]) if place else self.untuned

    def func(self) -> Any:
        """The PrimFunc. Imports tvm."""
        import tvm

        return tvm.ir.load_json(self.func_json)
