"""Integers of 32 bits that wrap: LLVM may take what overflows for impossible, and has `x + 1 > x` for true.

    C[i] = A[i] + 1     →  C[i] = int32(int64(A[i]) + int64(1))     which LLVM narrows to the plain sum again

ONNX Runtime, torch and numpy wrap. Of 64 bits there is nothing wider, and they stay; so do sums of what only loops
count, as addresses are, and those of a reduction.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad, Var

from schedules.ir import tir

__all__ = ["WrapIntegers"]


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.WrapIntegers")
class WrapIntegers:
    """Rewrites PrimFuncs for CPUs that load such integers or cast to them, and leaves others unchanged."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        target = func.attrs.get("target") if func.attrs else None
        if target is None or target.kind.name != "llvm" or not _has_integers(func.body):
            return func
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, _store)))


def _has_integers(body: Any) -> bool:
    """Whether values may be such integers: what only loops count is neither loaded nor cast."""
    return any(_is_int32(node) for node in tir.collect(body, (TensorLoad, tirx.Cast)))


def _is_int32(expr: Any) -> bool:
    return str(expr.ty.dtype).partition("x")[0] == "int32"


def _store(store: Any) -> Any:
    """The store with loads kept aside, in whose indices nothing is to change."""
    if any(tir.loads_what_it_stores(part, store) for part in _operands(store.value)):
        return store
    loads: dict[Any, Any] = {}

    def aside(load: Any) -> Any:
        name = tirx.Var(f"load{len(loads)}", load.ty.dtype)
        loads[name] = load
        return name

    value = tvm_ffi.structural_map(store.value, (TensorLoad, aside))
    wrapped = tvm_ffi.structural_map(value, ((tirx.Add, tirx.Sub, tirx.Mul), lambda expr: _widened(expr, loads)))
    if wrapped.same_as(value):
        return store
    while _has_any(loads, wrapped):  # one may be in the index of another
        wrapped = tvm_ffi.structural_map(wrapped, (Var, lambda name: loads.get(name, name)))
    return tirx.BufferStore(store.buffer, wrapped, store.indices)


def _operands(value: Any) -> list[Any]:
    return [value.a, value.b] if isinstance(value, tirx.Add) else []


def _widened(expr: Any, loads: dict[Any, Any]) -> Any:
    dtype = str(expr.ty.dtype)
    kind, _, lanes = dtype.partition("x")
    if kind != "int32" or not _has_any(loads, expr):
        return expr
    wider = f"int64x{lanes}" if lanes else "int64"
    return tirx.Cast(dtype, type(expr)(*(tirx.Cast(wider, operand) for operand in (expr.a, expr.b))))


def _has_any(names: dict[Any, Any], expr: Any) -> bool:
    return any(name in names for name in tirx.analysis.undefined_vars(expr))
