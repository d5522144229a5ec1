"""Calls that compute what is there already: neutral elements, repeated casts, chains of bounds."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Rule, Scope, dims_equal, rewrite_calls, scalar_of

__all__ = ["SimplifyAlgebra"]


@tvm.transform.module_pass(opt_level=0, name="SimplifyAlgebra")
class SimplifyAlgebra:
    """`x + 0`, `x - 0`, `x * 1`, `x / 1`, `x ** 1 → x`; `x ** 2 → x * x`; casts to the same dtype, and casts of
    a value that an earlier cast kept exactly; `max(x, 0) → relu(x)`; nested clips; `full_like` as a scalar;
    concatenations of one part, or with parts of no elements.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module without the calls above."""
        return rewrite_calls(module, RULES)


def _same_type(call: relax.Call, expr: relax.Expr) -> bool:
    """Whether `expr` may stand for `call`: same dtype, provably same shape."""
    shape, other = getattr(expr.ty, "shape", None), call.ty.shape
    if str(expr.ty.dtype) != str(call.ty.dtype) or shape is None or other is None:
        return False
    return isinstance(shape, relax.ShapeExpr) and isinstance(other, relax.ShapeExpr) and dims_equal(shape, other)


def _neutral(element: float, *, right_only: bool = False) -> Rule:
    def rule(call: relax.Call, scope: Scope) -> relax.Expr | None:
        left, right = call.args
        if _is_tensor(left) and scalar_of(scope, right) == element and _same_type(call, left):
            return left
        if not right_only and scalar_of(scope, left) == element and _same_type(call, right):
            return right
        return None

    return rule


def _is_tensor(expr: relax.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType)


def _power(call: relax.Call, scope: Scope) -> relax.Expr | None:
    exponent = scalar_of(scope, call.args[1])
    if exponent not in (1.0, 2.0) or not _same_type(call, call.args[0]):
        return None
    return call.args[0] if exponent == 1.0 else relax.op.multiply(call.args[0], call.args[0])


EXACT = {
    "bool": ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    "int8": ("int16", "int32", "int64", "float16", "float32", "float64"),
    "uint8": ("int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
    "int16": ("int32", "int64", "float32", "float64"),
    "int32": ("int64", "float64"),
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
}
"""The dtypes that hold every value of a dtype."""


def _astype(call: relax.Call, scope: Scope) -> relax.Expr | None:
    source, dtype = call.args[0], str(call.ty.dtype)
    if str(source.ty.dtype) == dtype:
        return source
    inner = scope.call(source, "relax.astype")
    if inner is None:
        return None
    first = inner.args[0]
    if str(source.ty.dtype) not in EXACT.get(str(first.ty.dtype), ()):
        return None
    return first if str(first.ty.dtype) == dtype else relax.op.astype(first, dtype)


def _minimum(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """`min(clip(x, a, b), c) → clip(x, a, min(b, c))`."""
    bound = scalar_of(scope, call.args[1])
    inner = scope.call(call.args[0], "relax.clip", "relax.nn.relu", "relax.nn.relu6")
    inside = None if inner is None or not str(call.ty.dtype).startswith("float") else _bounds(inner)
    if bound is None or inner is None or inside is None or not _same_type(call, call.args[0]) or bound < inside[0]:
        return None
    return _bounded(inner.args[0], inside[0], min(bound, inside[1]))


def _maximum(call: relax.Call, scope: Scope) -> relax.Expr | None:
    if str(call.ty.dtype).startswith("float") and scalar_of(scope, call.args[1]) == 0.0:
        return relax.op.nn.relu(call.args[0]) if _same_type(call, call.args[0]) else None
    return None


def _bounds(call: relax.Call) -> tuple[float, float] | None:
    """The range that a relu or a clip by numbers leaves."""
    if call.op.name == "relax.nn.relu":
        return 0.0, math.inf
    if call.op.name == "relax.nn.relu6":
        return 0.0, 6.0
    low, high = (getattr(arg, "value", None) for arg in call.args[1:3])
    return None if low is None or high is None else (float(low), float(high))


def _clip(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """`clip(clip(x, a, b), c, d) → clip(x, max(a, c), min(b, d))` if the ranges overlap; `clip(x, 0, ∞) → relu(x)`."""
    bounds = _bounds(call)
    if bounds is None or not str(call.ty.dtype).startswith("float"):
        return None
    inner = scope.call(call.args[0], "relax.clip", "relax.nn.relu", "relax.nn.relu6")
    inside = None if inner is None else _bounds(inner)
    if inner is not None and inside is not None:
        low, high = max(bounds[0], inside[0]), min(bounds[1], inside[1])
        return None if low > high else _bounded(inner.args[0], low, high)
    if bounds == (0.0, math.inf) and call.op.name == "relax.clip":
        return relax.op.nn.relu(call.args[0])
    return call.args[0] if bounds == (-math.inf, math.inf) else None


def _bounded(expr: relax.Expr, low: float, high: float) -> relax.Expr:
    if (low, high) == (0.0, math.inf):
        return relax.op.nn.relu(expr)
    return relax.op.clip(expr, relax.prim_value(low), relax.prim_value(high))


def _where(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """`where(c, full_like(x, v), y) → where(c, v, y)` where the shape stays what it is without the fill."""
    condition, *branches = call.args
    for position, branch in enumerate(branches):
        fill = _fill(branch, scope)
        if fill is None:
            continue
        kept = [relax.const(fill, str(call.ty.dtype)) if i == position else b for i, b in enumerate(branches)]
        candidate = scope.emit(relax.op.where(condition, *kept))
        return candidate if _same_type(call, candidate) else None
    return None


def _fill(expr: relax.Expr, scope: Scope) -> float | None:
    """The number that fills the tensor `expr`, if that is how it is made; None for a scalar, which needs no help."""
    if expr.ty.ndim == 0:
        return None
    if scope.call(expr, "relax.zeros", "relax.zeros_like") is not None:
        return 0.0
    if scope.call(expr, "relax.ones", "relax.ones_like") is not None:
        return 1.0
    if (found := scope.call(expr, "relax.full", "relax.full_like")) is not None:
        return scalar_of(scope, found.args[1])
    return scalar_of(scope, expr)


def _dropout(call: relax.Call, scope: Scope) -> relax.Expr | None:
    mask = scope.emit(relax.op.ones_like(call.args[0]))
    return relax.Tuple([call.args[0], mask])


def _concat(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """Leave out parts of no elements; one part alone is the result."""
    fields = scope.value(call.args[0])
    if not isinstance(fields, relax.Tuple):
        return None
    parts = [field for field in fields.fields if not _is_empty(field)] or [fields.fields[0]]
    if len(parts) == 1:
        return parts[0] if _same_type(call, parts[0]) else None
    return None if len(parts) == len(fields.fields) else relax.Call(call.op, [relax.Tuple(parts)], call.attrs)


def _is_empty(expr: relax.Expr) -> bool:
    shape = getattr(expr.ty, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and any(getattr(size, "value", None) == 0 for size in shape)


def _double(name: str) -> Rule:
    def rule(call: relax.Call, scope: Scope) -> relax.Expr | None:
        inner = scope.call(call.args[0], name)
        return None if inner is None else inner.args[0]

    return rule


RULES: dict[str, Rule] = {
    "add": _neutral(0.0),
    "subtract": _neutral(0.0, right_only=True),
    "multiply": _neutral(1.0),
    "divide": _neutral(1.0, right_only=True),
    "power": _power,
    "astype": _astype,
    "maximum": _maximum,
    "minimum": _minimum,
    "clip": _clip,
    "nn.relu": _clip,
    "where": _where,
    "concat": _concat,
    "nn.dropout": _dropout,
    "negative": _double("relax.negative"),
    "logical_not": _double("relax.logical_not"),
}
