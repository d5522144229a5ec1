"""`-O3`: divisions and powers as what is cheaper and a rounding away."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.common.rewrite import Rule, Scope, rewrite_calls, scalar_of

__all__ = ["FastMath"]


@tvm.transform.module_pass(opt_level=0, name="FastMath")
class FastMath:
    """`x / c → x * (1/c)`, `x / sqrt(y) → x * rsqrt(y)`, `x ** ½ → sqrt(x)`, `x ** -½ → rsqrt(x)`, `x ** -1 → 1 / x`.

    Each differs from what it replaces by a rounding, or (the root) by the sign of zero and of infinity. The
    functions themselves are approximated when PrimFuncs are lowered, not here.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with cheaper arithmetic on fp32; other dtypes are left alone."""
        return rewrite_calls(module, RULES)


def _divide(call: relax.Call, scope: Scope) -> relax.Expr | None:
    if str(call.ty.dtype) != "float32":
        return None
    divisor = scope.constant(call.args[1])
    if divisor is not None:
        with np.errstate(all="ignore"):
            inverse = 1.0 / np.asarray(divisor, "float64")
        limits = np.finfo("float32")
        usable = (np.abs(inverse) >= limits.tiny) & (np.abs(inverse) <= limits.max)
        return relax.op.multiply(call.args[0], constant(inverse, "float32")) if usable.all() else None
    root = scope.call(call.args[1], "relax.sqrt")
    return None if root is None else relax.op.multiply(call.args[0], scope.emit(relax.op.rsqrt(root.args[0])))


def _power(call: relax.Call, scope: Scope) -> relax.Expr | None:
    exponent = scalar_of(scope, call.args[1])
    if str(call.ty.dtype) != "float32" or call.args[1].ty.ndim > 0:
        return None
    if exponent == 0.5:
        return relax.op.sqrt(call.args[0])
    if exponent == -0.5:
        return relax.op.rsqrt(call.args[0])
    return relax.op.divide(constant(np.float32(1)), call.args[0]) if exponent == -1.0 else None


RULES: dict[str, Rule] = {"divide": _divide, "power": _power}
