"""Arithmetic that CUDA's C has otherwise than ONNX, torch and numpy.

    max(a, b)                 →  relaxc_max(a, b)                   NaN where either is; CUDA's gives the other one
    int8(min(max(a, l), h))   →  itself                             NaN becomes the lowest, as where bytes are quantized
    A[i] + 1                  →  int32(uint32(A[i]) + uint32(1))    C has what overflows for impossible, and so
                                                                    `x + 1 > x` for true
    reinterpret(int32, u)     →  int32(u), u of uint32              C takes no address of a sum

The first is one instruction (`schedules/cuda/common/extremes.cuh`, which `with_extremes` puts before a source), and
the others are none. Sums of what only loops count, as addresses are, stay.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, PrimType

from relaxc.schedules.cuda.common.kernel import text_of
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.service.lowering.data_arithmetic import computed_in

__all__ = ["CudaArithmetic", "with_extremes"]

_NAMES = {tirx.Max: "relaxc_max", tirx.Min: "relaxc_min"}
_KINDS = {name: kind for kind, name in _NAMES.items()}
_UNSIGNED = {"int32": "uint32", "int64": "uint64"}


def with_extremes(source: str) -> str:
    """Return CUDA text behind the functions that it calls for the larger and the smaller of two floats."""
    if not any(f"{name}(" in source for name in _KINDS):
        return source
    return text_of("relaxc.schedules.cuda.common", "extremes.cuh") + source


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.CudaArithmetic")
class CudaArithmetic:
    """Rewrites CUDA kernels, behind every pass of TVM, and leaves other PrimFuncs unchanged."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        target = func.attrs.get("target") if func.attrs else None
        if target is None or target.kind.name != "cuda":
            return func
        body = tvm_ffi.structural_map(
            func.body, [((tirx.Max, tirx.Min), _extreme), (tirx.Cast, _cast), (Call, _reinterpreted)]
        )
        data = _of_data(body)
        return func.with_body(
            tvm_ffi.structural_map(body, ((tirx.BufferStore, tirx.Bind), lambda each: _wrapped(each, data)))
        )


def _extreme(expr: Any) -> Any:
    if not is_float(str(expr.ty.dtype).partition("x")[0]):
        return expr
    return tirx.call_pure_extern(str(expr.ty.dtype), _NAMES[type(expr)], expr.a, expr.b)


def _cast(expr: Any) -> Any:
    """The bounds of what becomes an integer as they were."""
    dtype = str(expr.ty.dtype)
    if is_float(dtype.partition("x")[0]) or dtype.startswith("bool"):
        return expr
    return tirx.Cast(dtype, _as_it_was(expr.value))


def _as_it_was(expr: Any) -> Any:
    if not (isinstance(expr, Call) and expr.op.same_as(Op.get("tirx.call_pure_extern"))):
        return expr
    kind = _KINDS.get(str(expr.args[0].value))
    return expr if kind is None else kind(_as_it_was(expr.args[1]), _as_it_was(expr.args[2]))


def _reinterpreted(call: Any) -> Any:
    if not (call.op.same_as(Op.get("tirx.reinterpret")) and isinstance(call.ty, PrimType)):
        return call
    became, was = (str(each.ty.dtype) for each in (call, call.args[0]))
    if not became.startswith(("int", "uint")) or became.removeprefix("u") != was.removeprefix("u"):
        return call  # other lanes are other numbers
    return tirx.Cast(became, call.args[0])


def _of_data(body: Any) -> set[Any]:
    """Variables that are bound to what is computed of memory."""
    names: set[Any] = set()
    for bind in tir.collect(body, tirx.Bind):
        if tir.loads(bind.value) or any(name in names for name in tirx.analysis.undefined_vars(bind.value)):
            names.add(bind.var)
    return names


def _wrapped(statement: Any, data: Container[Any]) -> Any:
    """A store or a binding in which the arithmetic of data is unsigned."""
    value = computed_in(statement.value, _UNSIGNED, data)
    if value.same_as(statement.value):
        return statement
    if isinstance(statement, tirx.Bind):
        return tirx.Bind(statement.var, value)
    return tirx.BufferStore(statement.buffer, value, statement.indices)
