"""A task: one PrimFunc of a model, and the template whose parameters are searched for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from service.request import TargetSpec

if TYPE_CHECKING:
    from schedules.rule import Choices, Parameters

__all__ = ["Task"]


@dataclass(frozen=True)
class Task:
    """What is tuned: picklable, and the same in every process.

    `func_json` is `tvm.ir.save_json` of the PrimFunc before it is scheduled. `rule` of `version` takes it;
    `default` are the parameters it has without tuning, `space` what each of them may be. `flops` and `bytes` are of
    one call, `weight` is how many calls of it the model makes. `shapes` is one line of buffer shapes, for the near fit
    and for people; `sizes` gives symbolic dims, by name, the sizes to measure with.
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

    def func(self) -> Any:
        """The PrimFunc. Imports tvm."""
        import tvm

        return tvm.ir.load_json(self.func_json)
