"""Casts move down until a narrowing one meets the widening one after it, and both go."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax

from service.passes.common.rewrite import Scope, rewrite_calls
from service.passes.precision.dtypes import LOW, MOVES, is_low

__all__ = ["CancelCasts"]


@tvm.transform.module_pass(opt_level=0, name="CancelCasts")
class CancelCasts:
    """`cast₃₂(cast₁₆(x₃₂)) → x₃₂`, and `move(cast(x)) → cast(move(x))` so that they meet.

    The first is no identity: it leaves out a rounding, which makes the result more exact. So it runs only on
    models in mixed precision, after WidenArithmetic, and not on a model whose casts are its own affair.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module without the roundings between one operator and the next."""
        return rewrite_calls(module, {"astype": _round_trip, **dict.fromkeys(MOVES, _sink)})


def _cast(expr: relax.Expr, scope: Scope) -> relax.Call | None:
    """The cast between a 16-bit float and fp32 that `expr` is."""
    found = scope.call(expr, "relax.astype")
    if found is None:
        return None
    source, result = str(found.args[0].ty.dtype), str(found.ty.dtype)
    between = (source in LOW and result == "float32") or (source == "float32" and result in LOW)
    return found if between else None


def _round_trip(call: relax.Call, scope: Scope) -> relax.Expr | None:
    inner = _cast(call.args[0], scope)
    if inner is None or not is_low(inner) or str(call.ty.dtype) != "float32":
        return None
    return inner.args[0]


def _sink(call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, *others = call.args
    if isinstance(data.ty, relax.TupleType):
        return _sink_all(call, scope)
    found = _cast(data, scope)
    if found is None:
        return None
    moved = scope.emit(relax.Call(call.op, [found.args[0], *others], call.attrs))
    return relax.op.astype(moved, str(found.ty.dtype))


def _sink_all(call: relax.Call, scope: Scope) -> relax.Expr | None:
    fields = scope.value(call.args[0])
    casts = [_cast(field, scope) for field in fields.fields] if isinstance(fields, relax.Tuple) else [None]
    known = [cast for cast in casts if cast is not None]
    if len(known) != len(casts) or len({str(cast.args[0].ty.dtype) for cast in known}) != 1:
        return None
    moved = scope.emit(relax.Call(call.op, [relax.Tuple([cast.args[0] for cast in known])], call.attrs))
    return relax.op.astype(moved, str(call.ty.dtype))
