"""CUDA's vectors of bool, in memory as the bytes that they are.

    x = mask[i:i+2]            →  x = boolx2(mask[i:i+2])           the buffer `mask` is one of int8 from here on
    mask[i:i+2] = a < b        →  mask[i:i+2] = int8x2(a < b)

CUDA has no such vectors. TVM 0.27 writes `ushort2` for one, which does for registers, and reads it from a `bool*` as
`*(ushort2*)`: four bytes for two.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.ir import tir

__all__ = ["BoolBytes"]


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.BoolBytes")
class BoolBytes:
    """Rewrites CUDA kernels, and leaves other PrimFuncs unchanged."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        target = func.attrs.get("target") if func.attrs else None
        if target is None or target.kind.name != "cuda":
            return func
        loads = [load.source for load in tir.loads(func.body) if _is_vector(load)]
        stores = [each.buffer for each in tir.collect(func.body, tirx.BufferStore) if _is_vector(each.value)]
        found = {buffer: _of_bytes(buffer) for buffer in (*loads, *stores) if buffer.scope() != "local"}
        return func.with_body(_Rewriter(found).rewrite(func.body)) if found else func


class _Rewriter:
    def __init__(self, found: dict[Any, Any]) -> None:
        self._found = found

    def rewrite(self, body: Any) -> Any:
        kinds = [(TensorLoad, self._load), (tirx.BufferStore, self._store)]
        kinds += [(tirx.DeclBuffer, self._declared), (tirx.AllocBuffer, self._allocated)]
        return tvm_ffi.structural_map(body, kinds)

    def _load(self, load: Any) -> Any:
        kept = self._found.get(load.source)
        return load if kept is None else tirx.Cast(str(load.ty.dtype), tirx.BufferLoad(kept, load.indices))

    def _store(self, store: Any) -> Any:
        kept = self._found.get(store.buffer)
        if kept is None:
            return store
        value = tirx.Cast(str(store.value.ty.dtype).replace("bool", "int8"), store.value)
        return tirx.BufferStore(kept, value, store.indices)

    def _declared(self, declared: Any) -> Any:
        kept = self._found.get(declared.buffer)
        return declared if kept is None else tirx.DeclBuffer(kept, data=declared.data)

    def _allocated(self, allocated: Any) -> Any:
        kept = self._found.get(allocated.buffer)
        return allocated if kept is None else tirx.AllocBuffer(kept, allocated.annotations)


def _is_vector(expr: Any) -> bool:
    return str(expr.ty.dtype).startswith("boolx")


def _of_bytes(buffer: Any) -> Any:
    dtype = str(buffer.dtype).replace("bool", "int8")
    return tirx.decl_buffer(buffer.shape, dtype, buffer.name, scope=buffer.scope(), layout=None)
