"""Normalizations that an exporter spelled out in arithmetic become one call again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.common.rewrite import Scope, rewrite_calls, scalar_of

__all__ = ["RecognizeNorms"]


@tvm.transform.module_pass(opt_level=0, name="RecognizeNorms")
class RecognizeNorms:
    """Over the last axis, with `d = x - mean(x)`:

    - `d / sqrt(mean(d²) + ε) → layer_norm(x, 1, 0)`;
    - `x * rsqrt(mean(x²) + ε) → rms_norm(x, 1)`;
    - a constant vector that scales or shifts the result becomes the norm's own.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with these chains as calls."""
        return rewrite_calls(module, {"multiply": _multiply, "divide": _divide, "add": _add})


def _multiply(call: relax.Call, scope: Scope) -> relax.Expr | None:
    for value, other in (call.args, call.args[::-1]):
        if (inverse := scope.call(other, "relax.rsqrt")) is not None:
            found = _normalized(value, inverse.args[0], scope)
            if found is not None:
                return found
        if (merged := _scaled(value, other, scope)) is not None:
            return merged
    return None


def _divide(call: relax.Call, scope: Scope) -> relax.Expr | None:
    root = scope.call(call.args[1], "relax.sqrt")
    root = _guarded_root(call.args[1], scope) if root is None else root
    return None if root is None else _normalized(call.args[0], root.args[0], scope)


def _guarded_root(expr: relax.Expr, scope: Scope) -> relax.Call | None:
    """The root in `where(v == -inf, inf, sqrt(v))`, which is `v ** 0.5`; no variance is infinite below."""
    choice = scope.call(expr, "relax.where")
    low = None if choice is None else scope.call(choice.args[0], "relax.equal")
    root = None if choice is None else scope.call(choice.args[2], "relax.sqrt")
    if choice is None or low is None or root is None or scalar_of(scope, choice.args[1]) != math.inf:
        return None
    tested = low.args[0].same_as(root.args[0]) and scalar_of(scope, low.args[1]) == -math.inf
    return root if tested else None


def _normalized(value: relax.Expr, variance: relax.Expr, scope: Scope) -> relax.Expr | None:
    """The norm whose numerator is `value` and whose denominator is the root of `variance`."""
    sum_ = scope.call(variance, "relax.add")
    for squares, epsilon in (sum_.args, sum_.args[::-1]) if sum_ is not None else ():
        number = scalar_of(scope, epsilon)
        mean = _mean(squares, scope)
        if number is None or mean is None or not _is_square_of(mean, value, scope):
            continue
        width = _width(value)
        if width is None or str(value.ty.dtype) not in ("float32", "float16", "bfloat16"):
            return None
        ones = constant(np.ones(width), str(value.ty.dtype))
        centered = _centered(value, scope)
        if centered is None:
            return relax.op.nn.rms_norm(value, ones, axes=-1, epsilon=number)
        zeros = constant(np.zeros(width), str(value.ty.dtype))
        return relax.op.nn.layer_norm(centered, ones, zeros, axes=-1, epsilon=number)
    return None


def _mean(expr: relax.Expr, scope: Scope) -> relax.Expr | None:
    """What `expr` is the mean of, over the last axis alone, that axis kept."""
    found = scope.call(expr, "relax.mean")
    if found is None or not found.attrs.keepdims or found.attrs.axis is None:
        return None
    rank = found.args[0].ty.ndim
    return found.args[0] if [int(axis) % rank for axis in found.attrs.axis] == [rank - 1] else None


def _is_square_of(expr: relax.Expr, value: relax.Expr, scope: Scope) -> bool:
    if (found := scope.call(expr, "relax.multiply")) is not None:
        return all(_same_value(arg, value, scope) for arg in found.args)
    if (found := scope.call(expr, "relax.power")) is not None and scalar_of(scope, found.args[1]) == 2.0:
        return _same_value(found.args[0], value, scope)
    found = scope.call(expr, "relax.square")
    return found is not None and _same_value(found.args[0], value, scope)


def _same_value(left: relax.Expr, right: relax.Expr, scope: Scope) -> bool:
    """The same variable, or the same difference of variables: exporters compute `x - mean` twice."""
    if left.same_as(right):
        return True
    one, other = scope.call(left, "relax.subtract"), scope.call(right, "relax.subtract")
    return (
        one is not None and other is not None and all(a.same_as(b) for a, b in zip(one.args, other.args, strict=True))
    )


def _centered(value: relax.Expr, scope: Scope) -> relax.Expr | None:
    """`x` where `value` is `x - mean(x)`."""
    found = scope.call(value, "relax.subtract")
    if found is None:
        return None
    mean = _mean(found.args[1], scope)
    return mean if mean is not None and mean.same_as(found.args[0]) else None


def _width(expr: relax.Expr) -> int | None:
    """The size of the last axis, if it is a number."""
    size = expr.ty.shape[-1] if isinstance(expr.ty.shape, relax.ShapeExpr) and expr.ty.ndim else None
    return None if size is None or not hasattr(size, "value") else int(size)


def _vector(expr: relax.Expr, width: Any, scope: Scope) -> Any:
    """The constant along the last axis that `expr` is, as an array of one axis."""
    array = scope.constant(expr)
    return None if array is None or array.size != int(width) or array.shape[-1:] != (int(width),) else array.reshape(-1)


def _scaled(value: relax.Expr, other: relax.Expr, scope: Scope) -> relax.Expr | None:
    norm = scope.call(value, "relax.nn.layer_norm", "relax.nn.rms_norm")
    if norm is None or not scope.used_once(value) or not _is_row_norm(norm):
        return None
    scale = _vector(other, norm.ty.shape[-1], scope)
    gamma, *beta = (scalar_of(scope, arg) for arg in norm.args[1:])
    if scale is None or gamma != 1.0 or any(number != 0.0 for number in beta) or other.ty.ndim > norm.ty.ndim:
        return None
    return relax.Call(norm.op, [norm.args[0], constant(scale), *norm.args[2:]], norm.attrs)


def _add(call: relax.Call, scope: Scope) -> relax.Expr | None:
    for value, other in (call.args, call.args[::-1]):
        norm = scope.call(value, "relax.nn.layer_norm")
        if norm is None or not scope.used_once(value) or not _is_row_norm(norm) or other.ty.ndim > norm.ty.ndim:
            continue
        shift = _vector(other, norm.ty.shape[-1], scope)
        if shift is not None and scalar_of(scope, norm.args[2]) == 0.0:
            return relax.Call(norm.op, [*norm.args[:2], constant(shift)], norm.attrs)
    return None


def _is_row_norm(norm: relax.Call) -> bool:
    return [int(axis) % norm.ty.ndim for axis in norm.attrs.axes] == [norm.ty.ndim - 1] and hasattr(
        norm.ty.shape[-1], "value"
    )
