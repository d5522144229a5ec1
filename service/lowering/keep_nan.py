"""NaN where LLVM's code would lose it: comparisons by `!=`, casts to bool, the larger and the smaller of two floats.

    a != b          →  not (a == b)          TVM's is LLVM's `fcmp one`, which is false for NaN
    bool(x)         →  not (x == 0)          the same; NaN is true in C, numpy, ONNX and torch
    max(x, c)       →  max(c, x)             TVM's is `a > b ? a : b`: x where x is NaN, and before it was c
    max(a, b)       →  llvm.maximum(a, b)    NaN where either is
    m = max(m, x)   →  m = max(x, m); x == x ? m : x
                                             a reduction, two instructions with AVX-512 (`vfixupimm`); of a softmax
                                             the first alone, which drops NaN, as the sum has it
    max(x, bits(n)) →  itself                n, an integer in memory, is a bound of what is quantized, and never NaN;
                                             NaN becomes it, by one instruction for the five of `llvm.maximum`

A ReLU that made 0 of NaN would hide that a model overflowed. With a constant it is free: x86's `vmaxps` is that select.
The pass runs behind the last simplification, which would turn `not ==` into `!=` again.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, TensorLoad

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.ir.extremes import is_shift

__all__ = ["KeepNan"]

_INTRINSICS = {tirx.Max: "llvm.maximum", tirx.Min: "llvm.minimum"}
_EXTREMES = {name: kind for kind, name in _INTRINSICS.items()}
_FIXED = {"float32": ("ps", "int32"), "float64": ("pd", "int64")}
_NAN_ALONE = 0x22
"""`vfixupimm`'s table: quiet and signaling NaN are taken, for all other numbers what is there stays."""


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.KeepNan")
class KeepNan:
    """Rewrites PrimFuncs for CPUs, and leaves others unchanged: CUDA's `!=` and casts to bool are right."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        target = func.attrs.get("target") if func.attrs else None
        if target is None or target.kind.name != "llvm":
            return func
        made: list[Any] = []
        extremes = ((tirx.Max, tirx.Min), lambda expr: _extreme(expr, made))
        body = tvm_ffi.structural_map(func.body, [(tirx.NE, _unequal), (tirx.Cast, _cast), extremes])
        if made:
            wide = bool(tvm.get_global_func("target.target_has_feature")("avx512vl", target))
            body = tvm_ffi.structural_map(body, (tirx.BufferStore, lambda store: _store(store, wide)))
        return func.with_body(body)


def _has_nan(expr: Any) -> bool:
    return is_float(str(expr.ty.dtype))


def _unequal(expr: Any) -> Any:
    return tirx.Not(tirx.EQ(expr.a, expr.b)) if _has_nan(expr.a) else expr


def _cast(expr: Any) -> Any:
    to_bool = str(expr.ty.dtype).startswith("bool") and _has_nan(expr.value)
    return tirx.Not(tirx.EQ(expr.value, tir.zero(expr.value))) if to_bool else expr


def _extreme(expr: Any, made: list[Any]) -> Any:
    """Return the rewritten expression; `made` gets it where it is a call."""
    if not _has_nan(expr) or _is_bound(expr.a) or _is_bound(expr.b):
        return expr
    for constant, other in ((expr.a, expr.b), (expr.b, expr.a)):
        if _is_number(constant):
            return type(expr)(constant, other)
    made.append(tirx.call_llvm_pure_intrin(str(expr.ty.dtype), _INTRINSICS[type(expr)], expr.a, expr.b))
    return made[-1]


def _is_number(expr: Any) -> bool:
    """Return whether `expr` is a constant, and not NaN."""
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return isinstance(value, tirx.FloatImm) and value.value == value.value


def _is_bound(expr: Any) -> bool:
    """Return whether `expr` is a number that one integer in memory has the bits of."""
    for kind in ("broadcast", "reinterpret", "broadcast"):
        if kind == "broadcast" and isinstance(expr, tirx.Broadcast):
            expr = expr.value
        elif kind == "reinterpret":
            if not (isinstance(expr, Call) and expr.op.same_as(Op.get("tirx.reinterpret"))):
                return False
            expr = expr.args[0]
    return isinstance(expr, TensorLoad) and all(isinstance(index, tirx.IntImm) for index in expr.indices)


def _store(store: Any, wide: bool) -> Any:
    """Return a step of a reduction in fewer instructions than `llvm.maximum` takes, which orders zeros too."""
    value = store.value
    if not (isinstance(value, Call) and value.op.same_as(Op.get("tirx.call_llvm_pure_intrin"))):
        return store
    kind = _EXTREMES.get(tvm_ffi.get_global_func("target.llvm_get_intrinsic_name")(int(value.args[0])))
    if kind is None:
        return store
    one, other = value.args[1:]
    if not (tir.loads_what_it_stores(one, store) or tir.loads_what_it_stores(other, store)):
        return store
    held, taken = (one, other) if tir.loads_what_it_stores(one, store) else (other, one)
    if is_shift(store.buffer):
        return tirx.BufferStore(store.buffer, kind(taken, held), store.indices)
    if isinstance(taken, TensorLoad):
        return tirx.BufferStore(store.buffer, _kept(kind, held, taken, wide), store.indices)
    term = tirx.Var("term", str(taken.ty.dtype))
    return tirx.BufferStore(store.buffer, tirx.Let(term, taken, _kept(kind, held, term, wide)), store.indices)


def _kept(kind: type, held: Any, taken: Any, wide: bool) -> Any:
    """`kind(taken, held)` is `held` where one is NaN; it becomes `taken` where that is what is NaN."""
    step, dtype = kind(taken, held), str(taken.ty.dtype)
    element, _, lanes = dtype.partition("x")
    bits = int(element.removeprefix("float")) * int(lanes or 1) if element in _FIXED else 0
    if not wide or bits not in (128, 256, 512):
        return tirx.Select(tirx.EQ(taken, taken), step, taken)
    suffix, integer = _FIXED[element]
    table = tirx.Broadcast(tirx.IntImm(integer, _NAN_ALONE), int(lanes))
    mask = tirx.IntImm("int16" if int(lanes) == 16 else "int8", -1)
    rounding = [tirx.IntImm("int32", 4)] if bits == 512 else []
    name = f"llvm.x86.avx512.mask.fixupimm.{suffix}.{bits}"
    return tirx.call_llvm_pure_intrin(dtype, name, step, taken, table, tirx.IntImm("int32", 0), mask, *rounding)
