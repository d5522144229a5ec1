"""Activations that an exporter spelled out in arithmetic become one call again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Scope, dims_equal, rewrite_calls, scalar_of

__all__ = ["RecognizeActivations"]


@tvm.transform.module_pass(opt_level=0, name="RecognizeActivations")
class RecognizeActivations:
    """Products are taken apart into a number and factors, in whatever order they were written:

    - `½ · x · (1 + erf(x / √2)) → gelu(x)`;
    - `½ · x · (1 + tanh(√(2/π) (x + 0.044715 x³))) → gelu_tanh(x)`;
    - `x · sigmoid(x) → silu(x)`.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with these products as calls."""
        return rewrite_calls(module, {"multiply": _activation, "divide": _activation})


@dataclass(frozen=True)
class Product:
    """`number · factors[0] · factors[1] · …`"""

    number: float
    factors: tuple[relax.Expr, ...]


def _product(expr: relax.Expr, scope: Scope, depth: int = 6) -> Product:
    number = scalar_of(scope, expr) if isinstance(expr.ty, relax.TensorType) else None
    if number is not None:
        return Product(number, ())
    if depth and (found := scope.call(expr, "relax.multiply")) is not None:
        left, right = (_product(arg, scope, depth - 1) for arg in found.args)
        return Product(left.number * right.number, left.factors + right.factors)
    if depth and (found := scope.call(expr, "relax.divide")) is not None:
        divisor = scalar_of(scope, found.args[1])
        if divisor:
            inner = _product(found.args[0], scope, depth - 1)
            return Product(inner.number / divisor, inner.factors)
    if (found := scope.call(expr, "relax.power")) is not None and scalar_of(scope, found.args[1]) == 3.0:
        return Product(1.0, (found.args[0],) * 3)
    return Product(1.0, (expr,))


def _close(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=1e-3)


def _sum_with(expr: relax.Expr, number: float, scope: Scope) -> relax.Expr | None:
    """`y` where `expr` is `y + number`."""
    found = scope.call(expr, "relax.add")
    if found is None:
        return None
    for position in (0, 1):
        if scalar_of(scope, found.args[position]) == number:
            return found.args[1 - position]
    return None


def _activation(call: relax.Call, scope: Scope) -> relax.Expr | None:
    if not str(call.ty.dtype).startswith(("float", "bfloat")):
        return None
    product = _product(call, scope)
    if len(product.factors) != 2:
        return None
    for x, gate in (product.factors, product.factors[::-1]):
        found = _gated(x, gate, product.number, scope)
        if found is not None and dims_equal(found.ty.shape, call.ty.shape):
            return found
    return None


def _gated(x: relax.Expr, gate: relax.Expr, number: float, scope: Scope) -> relax.Expr | None:
    if (sigmoid := scope.call(gate, "relax.sigmoid")) is not None and number == 1.0 and sigmoid.args[0].same_as(x):
        return scope.emit(relax.op.nn.silu(x))
    inner = _sum_with(gate, 1.0, scope) if _close(number, 0.5) else None
    if inner is None:
        return None
    if (erf := scope.call(inner, "relax.erf")) is not None:
        argument = _product(erf.args[0], scope)
        if _close(argument.number, math.sqrt(0.5)) and _only(argument, x, 1):
            return scope.emit(relax.op.nn.gelu(x))
    if (tanh := scope.call(inner, "relax.tanh")) is not None and _is_gelu_tanh(tanh.args[0], x, scope):
        return scope.emit(relax.op.nn.gelu_tanh(x))
    return None


def _only(product: Product, x: relax.Expr, times: int) -> bool:
    return len(product.factors) == times and all(factor.same_as(x) for factor in product.factors)


def _is_gelu_tanh(argument: relax.Expr, x: relax.Expr, scope: Scope) -> bool:
    outer = _product(argument, scope)
    if not _close(outer.number, math.sqrt(2 / math.pi)) or len(outer.factors) != 1:
        return False
    found = scope.call(outer.factors[0], "relax.add")
    if found is None:
        return False
    linear, cubic = sorted((_product(arg, scope) for arg in found.args), key=lambda product: len(product.factors))
    return linear.number == 1.0 and _only(linear, x, 1) and _close(cubic.number, 0.044715) and _only(cubic, x, 3)
