"""Vectors of bool in buffers of the kernel, which TVM's StorageRewrite makes buffers of int8 and reads as these.

t[i]                →  boolx16(t[i])     t holds what comparisons gave: LLVM has no `xor` of 16 bytes and 16 bits
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.ir import tir

__all__ = ["KeepBools"]


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.KeepBools")
class KeepBools:
    """Rewrites PrimFuncs that StorageRewrite has left."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        bools: list[Any] = []
        others: list[Any] = []
        for store in tir.collect(func.body, tirx.BufferStore):
            (bools if _is_bool_as_bytes(store) else others).append(store.buffer)
        found = [buffer for buffer in bools if not any(buffer.same_as(other) for other in others)]
        if not found:
            return func

        def read(load: Any) -> Any:
            if not any(load.source.same_as(buffer) for buffer in found):
                return load
            return tirx.Cast(str(load.ty.dtype).replace("int8", "bool"), load)

        return func.with_body(tvm_ffi.structural_map(func.body, (TensorLoad, read)))


def _is_bool_as_bytes(store: Any) -> bool:
    return str(store.buffer.dtype).startswith("int8x") and str(store.value.ty.dtype).startswith("bool")
