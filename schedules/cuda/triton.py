"""The rule for PrimFuncs that a plugin's Triton kernel computes: it chooses one of the kernel's launches."""

from __future__ import annotations

from relaxc.schedules.cuda.triton_call import CONFIGURATION, call_of
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Choices, Declined, Parameters, Points, Schedule, check

__all__ = ["Triton"]

_NONE = Declined("no Triton kernel of a plugin computes it")


class Triton:
    """A launch out of those that the plugin gives: grid, constexprs, warps and stages; untuned the first.

    The kernel is compiled when the library is built (`service/lowering/triton_compile.py`).
    """

    name = "cuda.triton"
    version = 1
    alone = True
    """No other rule takes what this one takes, nor is asked."""

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """Return `func` with the number of its launch; the body stays as it is."""
        allowed = self.choices(func, target)
        if isinstance(allowed, Declined):
            return allowed
        chosen = dict(parameters or {"configuration": 0})
        check(chosen, allowed)
        return Schedule(func.with_attr(CONFIGURATION, chosen["configuration"]), chosen)

    def choices(self, func: PrimFunc, target: Target) -> Choices | Declined:
        """Return the number of each launch."""
        call = call_of(func)
        return _NONE if call is None else {"configuration": tuple(range(len(call.launches)))}

    def distinct(self, func: PrimFunc, target: Target) -> Points | Declined:
        """Return the launches, the untuned one first; equal ones once."""
        call = call_of(func)
        if call is None:
            return _NONE
        launches = list(call.launches)
        return Points.of([{"configuration": at} for at, each in enumerate(launches) if each not in launches[:at]])
