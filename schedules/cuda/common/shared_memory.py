"""What a scheduled PrimFunc allocates, and how much of it is shared memory."""

from __future__ import annotations

import math

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import SBlock

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Buffer, PrimFunc

__all__ = ["allocated", "shared_bytes"]

_COMPACT = [
    s_tir.transform.CanonicalizeLoop(),
    s_tir.transform.LowerCrossThreadReduction(),
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.CompactBufferAllocation(),
]
"""Until a buffer is as large as what a CTA uses of it; a schedule declares all of it."""


def shared_bytes(func: PrimFunc) -> int:
    """Return the bytes of shared memory that a CTA takes, over all kernels of `func`; sizes that are not known count 1.

    Raise what TVM raises where it cannot lower it.
    """
    if not any(_is_shared(buffer) for buffer in allocated(func)):
        return 0
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    lowered = tvm.ir.transform.Sequential(_COMPACT)(module)["main"]
    return sum(_bytes(buffer) for buffer in allocated(lowered) if _is_shared(buffer))


def allocated(func: PrimFunc) -> list[Buffer]:
    """Return the buffers that its blocks allocate."""
    return [buffer for block in tir.collect(func.body, SBlock) for buffer in block.alloc_buffers]


def _is_shared(buffer: Buffer) -> bool:
    return str(buffer.scope()).startswith("shared")


def _bytes(buffer: Buffer) -> int:
    sizes = (int(extent.value) if isinstance(extent, tirx.IntImm) else 1 for extent in buffer.shape)
    return math.prod(sizes) * dtype_bytes(str(buffer.dtype))
