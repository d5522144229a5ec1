"""Depthwise convolution on `NCHW[v]c`: each input vector is loaded once a kernel row, borders outside the hot loop."""

from __future__ import annotations

from typing import Any

from schedules.cpu.common import window_blocked
from schedules.hardware import cpu_of
from schedules.template import Choices, Declined, Parameters, Schedule, check

__all__ = ["DepthwiseBlocked"]

BLOCK = "depthwise_conv2d"


class DepthwiseBlocked:
    """`C[n, c, h, w, v] = epilogue(sum of A[n, c, h*s + r*d, w*s + q*d, v] * W[c, r, q, v])`.

        for strip of rows, n, c, h in parallel:
            for tile of columns:                                # the first and the last apart: they have the borders
                acc[columns][v] = 0
                for r: if row h*s + r*d is in the image:
                    for w in columns: for q: acc[w] += A[…, w*s + q*d] * W[r, q]
                C[tile] = epilogue(acc)

    An input vector serves all its taps from a register, so the multiply-adds and not the loads are the limit where A is
    in the L2. Parameters: `columns` of the register tile; `strips` of rows, outermost, so that a core has the rows
    that it had in the layers before and after; `staged`: the epilogue is a loop over the tile in memory, for one that
    calls functions. The order of the taps is that of Zhang, Lo and Lu, 'High performance depthwise and pointwise
    convolutions on mobile devices' (2020).
    """

    name = "cpu.depthwise_blocked"
    version = 2

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.template.Rule`."""
        cpu = cpu_of(target)
        window = window_blocked.find(func, BLOCK, cpu_of(target))
        if isinstance(window, Declined):
            return window
        chosen = window_blocked.default(window, cpu) if parameters is None else dict(parameters)
        if parameters is not None:
            check(chosen, window_blocked.choices(window, cpu))
        return Schedule(window_blocked.schedule(func, window, chosen, cpu), chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `schedules.template.Rule`."""
        window = window_blocked.find(func, BLOCK, cpu_of(target))
        return window if isinstance(window, Declined) else window_blocked.choices(window, cpu_of(target))
