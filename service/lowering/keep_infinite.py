"""What products, quotients and differences of floats give where an operand is infinite or NaN, or rounds.

    x * 0, 0 / x, 1 / 0     TVM's arithmetic has 0 for the first two, and refuses the last
    (x + y) - y, x - x      it has x and 0, which is right of integers alone; `(x + 2**23) - 2**23` is there to round

One operand is hidden behind its bits, of which LLVM, which knows floats, makes the operand again.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from relaxc.schedules.ir import tir

__all__ = ["KeepInfinite"]

_FLOATS = ("float16", "bfloat16", "float32", "float64")


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.KeepInfinite")
class KeepInfinite:
    """Rewrites PrimFuncs before every pass of TVM that simplifies."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        body = tvm_ffi.structural_map(func.body, [((tirx.Mul, tirx.Div), _with_zero), (tirx.Sub, _difference)])
        return func if body.same_as(func.body) else func.with_body(body)


def _with_zero(expr: Any) -> Any:
    if not (_is_zero(expr.a) or _is_zero(expr.b)):
        return expr
    return type(expr)(*(tir.hidden(each) if _is_zero(each) else each for each in (expr.a, expr.b)))


def _difference(expr: Any) -> Any:
    if not _is_float(expr) or not (isinstance(expr.a, tirx.Add) or tir.same(expr.a, expr.b)):
        return expr
    return expr if isinstance(Analyzer().simplify(expr), tirx.Sub) else tirx.Sub(tir.hidden(expr.a), expr.b)


def _is_zero(expr: Any) -> bool:
    """Whether a float is 0 whatever is loaded."""
    if not _is_float(expr):
        return False
    if not isinstance(expr, tirx.FloatImm) and not tir.loads(expr) and not tir.variables(expr):
        expr = Analyzer().simplify(expr)
    return isinstance(expr, tirx.FloatImm) and expr.value == 0


def _is_float(expr: Any) -> bool:
    return str(expr.ty.dtype) in _FLOATS
