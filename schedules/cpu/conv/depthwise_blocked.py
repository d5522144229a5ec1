"""Depthwise convolution on `NCHW[v]c`: each input vector is loaded once a kernel row, borders outside the hot loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from relaxc.schedules.cpu.common import window_blocked, window_plan
from relaxc.schedules.cpu.common.window_plan import Window
from relaxc.schedules.cpu.conv import depthwise_compute
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.operators import Depthwise2d
from relaxc.schedules.plan import Plan
from relaxc.schedules.planned import Array, Planned
from relaxc.schedules.template import Declined

__all__ = ["DepthwiseBlocked"]

BLOCK = "depthwise_conv2d"


class DepthwiseBlocked(Planned[Depthwise2d]):
    """`C[n, c, h, w, v] = epilogue(sum of A[n, c, h*s + r*d, w*s + q*d, v] * W[c, r, q, v])`.

        for strip of rows, n, c, h in parallel:
            for tile of columns:                                # the first and the last apart: they have the borders
                acc[columns][v] = 0
                for r: if row h*s + r*d is in the image:
                    for w in columns: for q: acc[w] += A[…, w*s + q*d] * W[r, q]
                C[tile] = epilogue(acc)

    An input vector serves all its taps from a register, so the multiply-adds and not the loads are the limit where A is
    in the L2. Parameters: `block` of the layout; `columns` of the register tile; `strips` of rows, outermost, so that a
    core has the rows that it had in the layers before and after; `staged`: the epilogue is a loop over the tile in
    memory, as is best for one that calls functions. The order of the taps is that of Zhang, Lo and Lu, 'High
    performance depthwise and pointwise convolutions on mobile devices' (2020).
    """

    name = "cpu.depthwise_blocked"
    version = 3
    layout = ("block",)
    computes = Depthwise2d
    dtypes = tuple((data, "float32", "float32") for data in ("float32", "bfloat16", "uint8", "int8"))
    kernel = "depthwise_conv2d"

    def refusal(self, operator: Depthwise2d, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """See `Planned`."""
        return self.wrong_dtypes(operator) or window_plan.refusal(_window(operator, cpu), parameters, cpu)

    def default(self, operator: Depthwise2d, cpu: Cpu) -> Mapping[str, int]:
        """See `Planned`."""
        return window_plan.default(_window(operator, cpu), cpu)

    def space(self, operator: Depthwise2d, cpu: Cpu) -> Iterable[dict[str, int]]:
        """See `Planned`."""
        return () if self.wrong_dtypes(operator) else window_plan.points(_window(operator, cpu), cpu)

    def estimate(self, operator: Depthwise2d, parameters: Mapping[str, int], cpu: Cpu) -> float:
        """See `Planned`."""
        return window_plan.estimate(_window(operator, cpu), parameters, cpu)

    def kernel_name(self, operator: Depthwise2d) -> str:
        """See `Planned`."""
        return f"{self.kernel}_nhwc" if operator.channels_last else self.kernel

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """See `Planned`."""
        return partial(depthwise_compute.depthwise_conv2d, plan=plan)

    def pack(self, plan: Plan, weight: Array) -> Array:
        """See `Planned`."""
        return depthwise_compute.pack_weight(weight, plan.parameters["block"])

    def emit(
        self, func: PrimFunc, operator: Depthwise2d, parameters: Mapping[str, int], cpu: Cpu
    ) -> PrimFunc | Declined:
        """See `Planned`."""
        window = _window(operator, cpu)
        return window_blocked.unfit(func, window) or window_blocked.schedule(func, window, parameters, cpu)


def _window(op: Depthwise2d, cpu: Cpu) -> Window:
    return Window(BLOCK, op, cpu.lanes(op.sum_bits), blocked=not op.channels_last, weighted=True)
