"""Register tiles on the stack, where LLVM makes registers of them.

TVM's LowerTVMBuiltin takes an allocation of 1 KiB or more from its workspace pool, which costs a call, and leaves the
accumulators of a tile of 14 x 2 vectors in memory as soon as LLVM cannot prove that nothing else reads them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx

__all__ = ["KeepTilesOnStack"]

MOST_BYTES = 16 << 10
"""Larger ones stay in the pool; the stacks of worker threads have a megabyte and more."""

_KEEP = "disable_lower_builtin"
"""The annotation by which LowerTVMBuiltin leaves an allocation as it is, which the code generator puts on the stack."""


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.KeepTilesOnStack")
class KeepTilesOnStack:
    """Marks the allocations of constant size up to `MOST_BYTES` that are local to a thread."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, _marked)))


def _marked(allocation: Any) -> Any:
    buffer = allocation.buffer
    if buffer.scope() != "local" or not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return allocation
    size_bytes = prod(int(extent) for extent in buffer.shape) * buffer.dtype.itemsize
    if size_bytes > MOST_BYTES:
        return allocation
    return tirx.AllocBuffer(buffer, {**(allocation.annotations or {}), _KEEP: tirx.IntImm("bool", 1)})
