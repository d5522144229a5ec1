"""Pooling on `NCHW[v]c` over windows, as in a depthwise convolution without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from relaxc.schedules.cpu.common import window_blocked, window_plan
from relaxc.schedules.cpu.common.window_plan import Window
from relaxc.schedules.cpu.pooling import pool_compute
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.operators import Pool2d
from relaxc.schedules.plan import Plan
from relaxc.schedules.planned import Planned
from relaxc.schedules.template import Declined

__all__ = ["Pooling"]

BLOCK = "pool2d"


class Pooling(Planned[Pool2d]):
    """`C[n, c, h, w, v] = epilogue(reduce over r, q of A[n, c, h*s + r*d, w*s + q*d, v])`.

    As `DepthwiseBlocked`, with its parameters. Bytes are in blocks as wide as a vector of sums, and compared as bytes;
    maxima of bfloat16 are those of the same numbers in float32.
    """

    name = "cpu.pooling"
    version = 2
    layout = ("block",)
    computes = Pool2d
    dtypes = (("float32", "float32"), ("bfloat16", "float32"), ("uint8", "int32"), ("int8", "int32"))
    kernel = "pool2d"

    def refusal(self, operator: Pool2d, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """See `Planned`."""
        if operator.whole:
            return "it is over the whole image"
        return self.wrong_dtypes(operator) or window_plan.refusal(_window(operator, cpu), parameters, cpu)

    def default(self, operator: Pool2d, cpu: Cpu) -> Mapping[str, int] | None:
        """See `Planned`."""
        return None if operator.whole else window_plan.default(_window(operator, cpu), cpu)

    def space(self, operator: Pool2d, cpu: Cpu) -> Iterable[dict[str, int]]:
        """See `Planned`."""
        return () if operator.whole or self.wrong_dtypes(operator) else window_plan.points(_window(operator, cpu), cpu)

    def estimate(self, operator: Pool2d, parameters: Mapping[str, int], cpu: Cpu) -> float:
        """See `Planned`."""
        return window_plan.estimate(_window(operator, cpu), parameters, cpu)

    def kernel_name(self, operator: Pool2d) -> str:
        """See `Planned`."""
        return f"{operator.reduce}_{self.kernel}"

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """See `Planned`."""
        return partial(pool_compute.pool_windows, plan=plan)

    def emit(self, func: PrimFunc, operator: Pool2d, parameters: Mapping[str, int], cpu: Cpu) -> PrimFunc | Declined:
        """See `Planned`."""
        window = _window(operator, cpu)
        return window_blocked.unfit(func, window) or window_blocked.schedule(func, window, parameters, cpu)


def _window(op: Pool2d, cpu: Cpu) -> Window:
    return Window(BLOCK, op, cpu.lanes(op.sum_bits), blocked=True, weighted=False)
