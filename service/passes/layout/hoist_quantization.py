"""Quantization moves in front of transposes and reshapes, into the kernel that computes what is moved."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, static_shape
from relaxc.service.passes.precision.dtypes import BYTES, is_low

__all__ = ["HoistQuantization"]

_MOVES = ("relax.reshape", "relax.permute_dims")


@tvm.transform.module_pass(opt_level=0, name="HoistQuantization")
class HoistQuantization:
    """What quantizes moved values quantizes them before, so that bytes move, or what these become in 16 bits.

        quantize(move(x) * f, s, z)          →   move(quantize(x * f, s, z))
        dequantize(move(quantize(x)), s, z)  →   move(dequantize(quantize(x), s, z))
        cast₁₆(move(dequantize(q)))          →   move(cast₁₆(dequantize(q)))

    One scale and one zero point for all elements, and values that are computed and nothing else reads: their kernel
    does it too. The numbers stay the same, to the bit.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with quantization before movements; the same object if there is none behind."""
        return rewrite_calls(module, {"quantize": _quantize, "dequantize": _dequantize, "astype": _cast})


def _quantize(call: relax.Call, scope: Scope) -> relax.Expr | None:
    if not _has_one_scale(call) or str(call.attrs.out_dtype) not in BYTES:
        return None
    factor = scope.call(call.args[0], "relax.multiply")
    chain, data = [call], call.args[0]
    if factor is not None and scope.used_once(data) and _is_number(factor.args[1], scope):
        chain, data = [call, factor], factor.args[0]
    return _before_moves(chain, data, scope, ("",))


def _dequantize(call: relax.Call, scope: Scope) -> relax.Expr | None:
    return _before_moves([call], call.args[0], scope, ("relax.quantize",)) if _has_one_scale(call) else None


def _cast(call: relax.Call, scope: Scope) -> relax.Expr | None:
    return _before_moves([call], call.args[0], scope, ("relax.dequantize",)) if is_low(call) else None


def _before_moves(chain: list[relax.Call], data: relax.Expr, scope: Scope, of: tuple[str, ...]) -> relax.Expr | None:
    """`chain`, outermost first, in front of the moves that `data` is made by, of a call of one of `of`; '' is any."""
    moves = []
    while (move := scope.call(data, *_MOVES)) is not None and scope.used_once(data):
        moves.append(move)
        data = move.args[0]
    made = scope.value(data)
    if not moves or not isinstance(made, relax.Call) or not scope.used_once(data):
        return None
    if "" not in of and op_name(made) not in of:
        return None
    for each in reversed(chain):
        data = scope.emit(_on(each, data))
    for move in reversed(moves[1:]):
        data = scope.emit(relax.Call(move.op, [data, *move.args[1:]], move.attrs))
    return relax.Call(moves[0].op, [data, *moves[0].args[1:]], moves[0].attrs)


def _on(call: relax.Call, data: relax.Expr) -> relax.Expr:
    """The same of other data, of any rank."""
    if op_name(call) in ("relax.quantize", "relax.dequantize"):
        operator = getattr(relax.op, op_name(call).removeprefix("relax."))
        return operator(data, *call.args[1:], 0, str(call.attrs.out_dtype))
    return relax.Call(call.op, [data, *call.args[1:]], call.attrs)


def _has_one_scale(call: relax.Call) -> bool:
    return all(static_shape(argument) in ((), (1,)) for argument in call.args[1:])


def _is_number(expr: relax.Expr, scope: Scope) -> bool:
    return static_shape(expr) in ((), (1,)) and scope.constant(expr) is not None
