"""Two passes around VectorizeLoop, which keep statements with function calls in vectors.

`MarkVectorFunctions` before it: TVM takes erf, log1p, nearbyint, isnan and rsqrt for not vectorizable, and runs
a statement with one of them lane by lane. Within vectorized loops these become operators of ours that are.
`CallVectorFunctions` behind it: exp and the like, of vectors and of single elements, become calls of the
functions of `vector_math`, so that a tail gives the same values as the vectors before it.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op

from relaxc.service.lowering.vector_math import FUNCTIONS, function_name, llvm_module

__all__ = ["VECTOR_MATH", "CallVectorFunctions", "MarkVectorFunctions", "register_operators"]

VECTOR_MATH = "relaxc.vector_math"
"""The attribute of the PrimFuncs that these passes rewrite."""

_MARKED = ("erf", "log1p", "nearbyint")
_DTYPES = ("float32", "float16", "bfloat16")
_SIZE_BITS, _INFINITY_BITS = 0x7FFFFFFF, 0x7F800000


def register_operators() -> None:
    """Make our operators known to TVM; to do so again changes nothing."""
    known = {str(name) for name in Op.list_op_names()}
    pure = Op.get("tirx.exp").get_attr("TCallEffectKind")
    for name in _MARKED:
        if f"relaxc.{name}" in known:
            continue
        tvm.get_global_func("ir.RegisterOp")(f"relaxc.{name}", f"{name} of a float, which TVM may vectorize")
        operator = Op.get(f"relaxc.{name}")
        operator.set_attr("TVectorizable", True)
        operator.set_attr("TCallEffectKind", pure)
        operator.set_attr("TScriptPrinterName", f"relaxc_{name}")


def _wanted(func: Any) -> bool:
    return func.attrs is not None and bool(func.attrs.get(VECTOR_MATH))


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", ""))


def _dtype(expr: Any) -> str:
    """The dtype of a number or vector; empty for a handle."""
    return str(getattr(expr.ty, "dtype", ""))


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.MarkVectorFunctions")
class MarkVectorFunctions:
    """See the module."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _mark))) if _wanted(func) else func


def _mark(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    return tvm_ffi.structural_map(loop, (Call, _marked))


def _marked(call: Any) -> Any:
    name, dtype = _name(call).removeprefix("tirx."), _dtype(call)
    if name in _MARKED and dtype in _DTYPES:
        return tirx.call_intrin(dtype, Op.get(f"relaxc.{name}"), call.args[0])
    if name == "rsqrt":
        return tirx.const(1.0, dtype) / tirx.sqrt(call.args[0])
    if name == "isnan" and _dtype(call.args[0]) == "float32":
        # On the bits: TVM's simplifier takes x != x for false.
        size = tirx.reinterpret("int32", call.args[0]) & tirx.const(_SIZE_BITS, "int32")
        return size > tirx.const(_INFINITY_BITS, "int32")
    return call


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.CallVectorFunctions")
class CallVectorFunctions:
    """See the module."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc, and bring along the functions that it calls."""
        del module, context
        if not _wanted(func):
            return func
        called: set[tuple[str, int]] = set()
        body = tvm_ffi.structural_map(func.body, (Call, lambda call: _called(call, called)))
        if called:
            code = llvm_module(sorted(called), avx512=_has_avx512(func.attrs.get("target")))
            body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", code, body)
        return func.with_body(body)


def _has_avx512(target: Any) -> bool:
    is_cpu = target is not None and str(target.kind.name) == "llvm"
    return is_cpu and bool(tvm.get_global_func("target.target_has_feature")("avx512f", target))


def _called(call: Any, called: set[tuple[str, int]]) -> Any:
    name = _name(call).removeprefix("tirx.").removeprefix("relaxc.")
    dtype = _dtype(call)
    element, _, width = dtype.partition("x")
    if element not in _DTYPES:
        return call
    if _name(call) == "relaxc.nearbyint":
        return tirx.call_intrin(dtype, Op.get("tirx.nearbyint"), call.args[0])
    if name not in FUNCTIONS:
        return call
    lanes = int(width or 1)
    single = f"float32x{lanes}" if width else "float32"
    argument = call.args[0] if element == "float32" else tirx.Cast(single, call.args[0])
    called.add((name, lanes))
    result = tirx.call_pure_extern(single, function_name(name, lanes), argument)
    return result if element == "float32" else tirx.Cast(dtype, result)
