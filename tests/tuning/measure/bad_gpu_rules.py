"""A rule for Hopper whose kernels do what they should, or what may go wrong on a GPU."""

from __future__ import annotations

from typing import Any

from relaxc.schedules.cuda.common.kernel import TextKernel
from relaxc.schedules.template import Choices, Parameters, Template

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


class Faulty(Template[Any, Any]):
    """y = x + 1, or the fault that its one parameter numbers."""

    name = "test.faulty_gpu"
    version = 1

    def matched(self, func: Any, target: Any) -> Any:
        """Take everything."""
        return func

    def default(self, form: Any, machine: Any) -> Parameters:
        """Return no fault."""
        return {"fault": 0}

    def space(self, form: Any, machine: Any) -> Choices:
        """See `Template`."""
        return {"fault": tuple(range(len(FAULTS)))}

    def emit(self, func: Any, form: Any, parameters: Parameters, machine: Any) -> Any:
        """See `Template`."""
        x, y = func.params
        text = _TEXT.replace("BODY", _BODIES[FAULTS[parameters["fault"]]])
        kernel = TextKernel(text, (), (x, y), int(x.shape[0]) // 256, 1, 256, 16)
        return kernel.prim_func(func)


RULES = (Faulty(),)
