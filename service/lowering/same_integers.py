"""Operands of one dtype, where LoopPartition adds an int32 and an int64: it says where the rest of a loop begins.

0 + int64(9)   →  int64(0) + int64(9)    the check of the next pass that looks at it stops the build
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

__all__ = ["SameIntegers"]

_BINARY = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max,
    tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE,
)  # fmt: skip


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.SameIntegers")
class SameIntegers:
    """Rewrites PrimFuncs that LoopPartition has left."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        return func.with_body(tvm_ffi.structural_map(func.body, (_BINARY, _same)))


def _same(expr: Any) -> Any:
    if {str(operand.ty.dtype) for operand in (expr.a, expr.b)} != {"int32", "int64"}:
        return expr
    return type(expr)(*(operand.astype("int64") for operand in (expr.a, expr.b)))
