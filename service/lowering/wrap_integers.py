"""Integers of 32 and 64 bits that wrap: LLVM may take what overflows for impossible, and has `x + 1 > x` for true.

    C[i] = A[i] + 1     →  C[i] = int32(int64(A[i]) + int64(1))     which LLVM narrows to the plain sum again

ONNX Runtime, torch and numpy wrap. Sums of what only loops count, as addresses are, stay, and those of a reduction.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.ir import tir
from relaxc.service.lowering.data_arithmetic import computed_in

__all__ = ["WrapIntegers"]


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.WrapIntegers")
class WrapIntegers:
    """Rewrites PrimFuncs for CPUs that load integers of `bits`, or cast to them, and leaves others unchanged.

    Those of 64 bits behind every pass of TVM: it folds constants, of which it has none of 128 bits.
    """

    def __init__(self, bits: int) -> None:
        self.wider = {f"{sign}int{bits}": f"{sign}int{2 * bits}" for sign in ("", "u")}

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        target = func.attrs.get("target") if func.attrs else None
        if target is None or target.kind.name != "llvm" or not _has_any_of(self.wider, func.body):
            return func
        return func.with_body(
            tvm_ffi.structural_map(func.body, (tirx.BufferStore, lambda store: _store(store, self.wider)))
        )


def _has_any_of(dtypes: Container[str], body: Any) -> bool:
    """Whether values may be such integers: what only loops count is neither loaded nor cast."""
    return any(str(node.ty.dtype).partition("x")[0] in dtypes for node in tir.collect(body, (TensorLoad, tirx.Cast)))


def _store(store: Any, wider: Mapping[str, str]) -> Any:
    if any(tir.loads_what_it_stores(part, store) for part in _operands(store.value)):
        return store
    value = computed_in(store.value, wider)
    return store if value.same_as(store.value) else tirx.BufferStore(store.buffer, value, store.indices)


def _operands(value: Any) -> list[Any]:
    return [value.a, value.b] if isinstance(value, tirx.Add) else []
