"""The rule for PrimFuncs that a plugin's Triton kernel computes: it chooses one of the kernel's launches."""

from __future__ import annotations

from relaxc.schedules.cuda.triton_call import CONFIGURATION, TritonCall, call_of
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.template import Choices, Declined, Parameters, Points, Template

__all__ = ["Triton"]

_NONE = Declined("no Triton kernel of a plugin computes it")


class Triton(Template[TritonCall, Gpu]):
    """A launch out of those that the plugin gives: grid, constexprs, warps and stages; untuned the first.

    The kernel is compiled when the library is built (`service/lowering/triton_compile.py`).
    """

    name = "cuda.triton"
    version = 1
    alone = True

    def matched(self, func: PrimFunc, target: Target) -> TritonCall | Declined:
        """Return the call of the kernel."""
        return call_of(func) or _NONE

    def default(self, form: TritonCall, gpu: Gpu) -> Parameters:
        """See `Template`."""
        return {"configuration": 0}

    def space(self, form: TritonCall, gpu: Gpu) -> Choices:
        """Return the number of each launch."""
        return {"configuration": tuple(range(len(form.launches)))}

    def emit(self, func: PrimFunc, form: TritonCall, parameters: Parameters, gpu: Gpu) -> PrimFunc:
        """Return `func` with the number of its launch; the body stays as it is."""
        return func.with_attr(CONFIGURATION, parameters["configuration"])

    def searched(self, func: PrimFunc, target: Target) -> Points | Declined:
        """Return the launches, the untuned one first; equal ones once."""
        call = call_of(func)
        if call is None:
            return _NONE
        launches = list(call.launches)
        return Points.of([{"configuration": at} for at, each in enumerate(launches) if each not in launches[:at]])
