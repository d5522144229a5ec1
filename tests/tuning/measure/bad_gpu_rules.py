"""A rule for Hopper whose kernels do what they should, or what may go wrong on a GPU."""

from __future__ import annotations

from typing import Any

from relaxc.schedules.cuda.common.kernel import TextKernel
from relaxc.schedules.template import Choices, Declined, Parameters, Schedule

__all__ = ["FAULTS", "RULES"]

FAULTS = ("none", "wrong", "fault", "hang")
"""What the parameter `fault` numbers."""

_BODIES = {
    "none": "y[at] = x[at] + 1.0f;",
    "wrong": "y[at] = x[at] + 1.5f;",
    "fault": "((volatile float*)nullptr)[at] = x[at];",
    "hang": "while (((volatile const float*)x)[at] == x[at]) {}",
}
_TEXT = """
__device__ __forceinline__ void NAME(void* shared, const void* from, void* to) {
  const float* x = (const float*)from;
  float* y = (float*)to;
  const int at = blockIdx.x * 256 + threadIdx.x;
  BODY
}
"""


class Faulty:
    """y = x + 1, or the fault that its one parameter numbers."""

    name = "test.faulty_gpu"
    version = 1

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `relaxc.schedules.template.Rule`."""
        del target
        chosen = dict(parameters or {"fault": 0})
        x, y = func.params
        text = _TEXT.replace("BODY", _BODIES[FAULTS[chosen["fault"]]])
        kernel = TextKernel(text, (), (x, y), int(x.shape[0]) // 256, 1, 256, 16)
        return Schedule(kernel.prim_func(func), chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `relaxc.schedules.template.Rule`."""
        del func, target
        return {"fault": tuple(range(len(FAULTS)))}


RULES = (Faulty(),)
