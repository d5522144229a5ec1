"""Quotients of what falls as a loop goes on, kept out of FlattenBuffer's sight: TVM 0.27 gets them wrong.

    y[(44 - i) // 5 * 10 + (44 - i) % 5 + j * 5]      a reversed view of a transposed matrix

FlattenBuffer hands the place to `iter_map_simplify`, which makes `i // -5 + 8` of `(44 - i) // 5`: 7 for 8 where i is
1, and elements before the buffer elsewhere. It has no switch. So each such dividend is a call of an unknown function
while it runs. TVM's other simplifier, which sees the places afterwards, has such quotients right.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from relaxc.schedules.ir import tir

__all__ = ["HideQuotients", "ShowQuotients"]

_HIDDEN = "relaxc_hidden"
_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod)


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.HideQuotients")
class HideQuotients:
    """Before FlattenBuffer: `(c - i) // d` becomes `relaxc_hidden(c - i) // d`, and `%` likewise."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc; one without such quotients is left as it is."""
        del module, context
        if not any(_falls(expr.a) for expr in tir.collect(func.body, _QUOTIENTS)):
            return func
        return func.with_body(tvm_ffi.structural_map(func.body, (_QUOTIENTS, _hide)))


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.ShowQuotients")
class ShowQuotients:
    """Behind FlattenBuffer: the dividends as they were."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc; one without hidden dividends is left as it is."""
        del module, context
        if not any(map(_is_hidden, tir.collect(func.body, Call))):
            return func
        return func.with_body(tvm_ffi.structural_map(func.body, (Call, _show)))


def _falls(dividend: Any) -> bool:
    """Whether a variable is subtracted in it, or multiplied by a negative number."""
    if any(tir.variables(each.b) for each in tir.collect(dividend, tirx.Sub)):
        return True
    factors = [tir.as_int(side) for each in tir.collect(dividend, tirx.Mul) for side in (each.a, each.b)]
    return any(factor is not None and factor < 0 for factor in factors)


def _hide(quotient: Any) -> Any:
    if not _falls(quotient.a):
        return quotient
    return type(quotient)(tirx.call_pure_extern(str(quotient.a.ty.dtype), _HIDDEN, quotient.a), quotient.b)


def _is_hidden(call: Any) -> bool:
    named = getattr(call.op, "name", "") == "tirx.call_pure_extern"
    return named and str(getattr(call.args[0], "value", "")) == _HIDDEN


def _show(call: Any) -> Any:
    return call.args[1] if _is_hidden(call) else call
