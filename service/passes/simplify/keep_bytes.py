"""What only moves or compares bytes does so in bytes: it is dequantized behind that, where a quantization may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, scalar_of
from relaxc.service.passes.precision.dtypes import BYTES

__all__ = ["KeepBytes"]

_MOVES = ("nn.max_pool2d", "reshape", "permute_dims", "take")


@tvm.transform.module_pass(opt_level=0, name="KeepBytes")
class KeepBytes:
    """A quantized network stays in bytes between its products.

        move(dequantize(q, s, z))                 →   dequantize(move(q), s, z), of a maximum over windows, a reshape, a
                                                      transposition, rows by their places; s > 0
        quantize(dequantize(q, s, z), s, z)       →   q
        quantize(relu(x), s, z), z the lowest     →   quantize(x, s, z)

    One scale and one zero point for all elements. The numbers stay the same, to the bit. Without `moves` the first of
    these stays: where kernels that write bytes, or read windows of them, are not to be had for every move.
    """

    def __init__(self, *, moves: bool = True) -> None:
        self.rules = {"quantize": _quantize, **(dict.fromkeys(_MOVES, _moved) if moves else {})}

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with its bytes kept; the same object if there is nothing to keep."""
        return rewrite_calls(module, self.rules)


def _moved(call: relax.Call, scope: Scope) -> relax.Expr | None:
    inner = scope.call(call.args[0], "relax.dequantize")
    if inner is None or str(inner.args[0].ty.dtype) not in BYTES or not scope.used_once(call.args[0]):
        return None
    if op_name(call) == "relax.take" and str(call.attrs.mode) != "clip":  # others make NaN of places that there are not
        return None
    numbers = _numbers(inner, scope)
    if numbers is None or not numbers[0] > 0:
        return None
    moved = scope.emit(relax.Call(call.op, [inner.args[0], *call.args[1:]], call.attrs))
    return relax.op.dequantize(moved, *inner.args[1:], 0, str(inner.attrs.out_dtype))


def _quantize(call: relax.Call, scope: Scope) -> relax.Expr | None:
    numbers, dtype = _numbers(call, scope), str(call.attrs.out_dtype)
    if numbers is None or dtype not in BYTES:
        return None
    inner = scope.call(call.args[0], "relax.dequantize")
    if inner is not None and str(inner.args[0].ty.dtype) == dtype and str(inner.ty.dtype) == "float32":
        return inner.args[0] if _numbers(inner, scope) == numbers and _is_normal(numbers[0]) else None
    inner = scope.call(call.args[0], "relax.nn.relu")
    if inner is None or numbers[1] != np.iinfo(dtype).min or not numbers[0] > 0:
        return None
    return relax.op.quantize(inner.args[0], *call.args[1:], int(call.attrs.axis), dtype)


def _numbers(call: relax.Call, scope: Scope) -> tuple[float, float] | None:
    """The scale and the zero point, where each is one known number."""
    scale, zero = (scalar_of(scope, argument) for argument in call.args[1:])
    return None if scale is None or zero is None else (scale, zero)


def _is_normal(scale: float) -> bool:
    """Whether steps of it are neither subnormal nor infinite, so that dividing by it gives them back."""
    return 1e-30 < scale < 1e30
