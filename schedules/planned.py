"""The base of templates that follow a plan: they read it off the PrimFunc, and guess nothing back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import numpy as np

from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.operators import Operator
from relaxc.schedules.plan import Plan, plan_of
from relaxc.schedules.template import Declined, Parameters, Template

__all__ = ["Planned"]

Array = np.ndarray[Any, Any]

Op = TypeVar("Op", bound=Operator)


class Planned(Template[Op, Cpu]):
    """A template whose form is an operator of `computes`, and which is asked before layouts are chosen.

    `refusal` alone says what a point is; `default` is the untuned one, and `space` are those that are worth a trial,
    over all layouts, each with its `estimate`. `compute` and `pack` make the kernel and its weights as a plan lays them
    out, and `emit` schedules it. `dtypes` are those of the operands and of the sums that it computes; `kernel` is what
    its kernels are called.
    """

    computes: type[Op]
    dtypes: tuple[tuple[str, ...], ...]
    kernel: str
    plans: ModuleType
    """What divides its operators, unless it says itself: `default`, `refusal`, `points` and `estimate`."""

    repacks: ClassVar[bool] = False
    """Whether the weights of its operator may be packed in other ways, by this template or another."""
    enlarges: ClassVar[bool] = False
    """Whether its packed weights take more room than the model's."""
    decides: ClassVar[bool] = False
    """Whether its default is taken wherever there is one: it has compared itself with the others."""

    def matched(self, func: PrimFunc, target: Target) -> Op | Declined:
        """Return the operator of the plan that `func` carries."""
        plan = plan_of(func)
        if plan is None or plan.template != self.name:
            return Declined("it carries no plan of this template")
        return plan.operator  # type: ignore[return-value]  # planning has asked only templates that compute it

    def given(self, func: PrimFunc) -> Parameters | None:
        """See `Template`."""
        plan = plan_of(func)
        return None if plan is None else plan.parameters

    def wrong_dtypes(self, operator: Op) -> str:
        """Return that it does not compute an operator of these dtypes; empty if it may."""
        is_declared = (*operator.operands, operator.accumulate) in self.dtypes
        return "" if is_declared else f"it computes no {operator.kind} of {operator.dtype}"

    def refusal(self, operator: Op, parameters: Parameters, cpu: Cpu) -> str:
        """See `Template`."""
        return self.wrong_dtypes(operator) or str(self.plans.refusal(operator, parameters, cpu))

    def default(self, operator: Op, cpu: Cpu) -> Parameters | None:
        """See `Template`."""
        found: Parameters | None = self.plans.default(operator, cpu)
        return found

    def space(self, operator: Op, cpu: Cpu) -> Iterable[Parameters]:
        """See `Template`: points over all layouts; none where it does not compute the operator."""
        found: Iterable[Parameters] = () if self.wrong_dtypes(operator) else self.plans.points(operator, cpu)
        return found

    def estimate(self, operator: Op, parameters: Parameters, cpu: Cpu) -> float:
        """Return the cycles of a point."""
        return float(self.plans.estimate(operator, parameters, cpu))

    def kernel_name(self, operator: Op) -> str:
        """Return what its kernel for an operator is called."""
        del operator
        return self.kernel

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """Return the operator as a tensor expression of image or rows, packed weights, and a gate if there is one."""
        raise NotImplementedError(f"{self.name} is for what a pass has put together")

    def pack(self, plan: Plan, weight: Array) -> Array:
        """Return the weights, `KN` or `OIHW`, as the plan has them laid out: a view where it can be."""
        raise NotImplementedError(f"{self.name} has no weights")

    def packed_shape(self, plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of weights of `shape` that `pack` has packed, of a template that `repacks`."""
        raise NotImplementedError(f"{self.name} packs its weights in one way")
