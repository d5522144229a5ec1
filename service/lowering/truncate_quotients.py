"""Quotients of what is never negative, as the processor has them: of others TVM takes one where the remainder says so.

    (i * h + j) // w    →   truncdiv(i * h + j, w)    i and j loops', h and w sizes of parameters
    (i * h + j) % w     →   truncmod(i * h + j, w)

TVM knows that loops count from 0, and not that sizes are positive: the floor of a quotient has three copies of the
dividend in it and five of the divisor. A reshape to sizes of sizes, as of pixel_unshuffle with any height, had so many
that LLVM took minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx

from relaxc.schedules.ir import tir

__all__ = ["TruncateQuotients"]

_KEEP_SIGN = (tirx.Add, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod, tirx.Min, tirx.Max)
"""What is not negative where none of both operands is."""
_TRUNCATED: dict[type, Callable[[Any, Any], Any]] = {tirx.FloorDiv: tirx.truncdiv, tirx.FloorMod: tirx.truncmod}


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.TruncateQuotients")
class TruncateQuotients:
    """Rewrites PrimFuncs with quotients by sizes, behind the last pass that simplifies quotients."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        quotients = tir.collect(func.body, tuple(_TRUNCATED))
        if all(isinstance(each.b, tirx.IntImm) for each in quotients):
            return func
        counts = _sizes(func) | {
            loop.loop_var for loop in tir.collect(func.body, tirx.For) if _is_natural(loop.min, ())
        }
        for bind in tir.collect(func.body, tirx.Bind):
            if _is_natural(bind.value, counts):
                counts.add(bind.var)

        def truncated(quotient: Any) -> Any:
            natural = _is_natural(quotient.a, counts) and _is_natural(quotient.b, counts)
            return _TRUNCATED[type(quotient)](quotient.a, quotient.b) if natural else quotient

        return func.with_body(tvm_ffi.structural_map(func.body, (tuple(_TRUNCATED), truncated)))


def _sizes(func: Any) -> set[Any]:
    """Variables that are not negative, as no size is: sizes of parameters, and what is divided or multiplied in one."""
    found = set()
    for param in func.params:
        for size in getattr(param, "shape", ()):
            while isinstance(size, (tirx.FloorDiv, tirx.Mul)) and _is_positive(size.b):
                size = size.a
            if isinstance(size, tirx.Var):
                found.add(size)
    return found


def _is_positive(expr: Any) -> bool:
    return isinstance(expr, tirx.IntImm) and expr.value > 0


def _is_natural(expr: Any, counts: Any) -> bool:
    """Whether an integer is never negative, given that `counts` are not."""
    if isinstance(expr, tirx.IntImm):
        return bool(expr.value >= 0)
    if isinstance(expr, tirx.Var):
        return expr in counts
    if isinstance(expr, tirx.Cast):
        return str(expr.value.ty.dtype).startswith(("int", "uint")) and _is_natural(expr.value, counts)
    return isinstance(expr, _KEEP_SIGN) and _is_natural(expr.a, counts) and _is_natural(expr.b, counts)
