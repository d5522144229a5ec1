"""Sums, differences and products of data in another dtype, where those of indices stay as they are."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad, Var

__all__ = ["computed_in"]


def computed_in(value: Any, dtypes: Mapping[str, str], data: Container[Any] = ()) -> Any:
    """Return `value` with its arithmetic of each dtype in `dtypes[dtype]`, and cast back: itself where there is none.

        A[i + 1] + 1  →  int32(int64(A[i + 1]) + int64(1))

    Of data is what has a load, or a variable that is `in data`. Indices of loads stay.
    """
    loads: dict[Any, Any] = {}
    names: dict[Any, Any] = {}

    def aside(load: Any) -> Any:
        """One name of equal loads: what binds a variable may be there twice, and TVM checks that it is the same."""
        key = tvm_ffi.StructuralKey(load)  # type: ignore[call-arg]
        if key not in names:
            names[key] = tirx.Var(f"load{len(loads)}", load.ty.dtype)
            loads[names[key]] = load
        return names[key]

    def other(expr: Any) -> Any:
        dtype = str(expr.ty.dtype)
        kind, _, lanes = dtype.partition("x")
        if kind not in dtypes or not any(name in loads or name in data for name in tirx.analysis.undefined_vars(expr)):
            return expr
        wanted = f"{dtypes[kind]}x{lanes}" if lanes else dtypes[kind]
        return tirx.Cast(dtype, type(expr)(*(tirx.Cast(wanted, operand) for operand in (expr.a, expr.b))))

    kept = tvm_ffi.structural_map(value, (TensorLoad, aside))
    made = tvm_ffi.structural_map(kept, ((tirx.Add, tirx.Sub, tirx.Mul), other))
    if made.same_as(kept):
        return value
    while any(name in loads for name in tirx.analysis.undefined_vars(made)):  # one may be in the index of another
        made = tvm_ffi.structural_map(made, (Var, lambda name: loads.get(name, name)))
    return made
