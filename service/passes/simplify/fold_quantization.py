"""The scale of a quantization moves into the constants before it, which are multiplied or added anyway."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.constants import Array, constant
from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, scalar_of
from relaxc.service.passes.precision.dtypes import BYTES, FLOAT8

__all__ = ["FoldQuantization"]

_MOVES = ("relax.nn.relu", "relax.reshape", "relax.permute_dims", "relax.nn.max_pool2d")
_WEIGHTED = ("relax.nn.conv2d", "relax.matmul")


@tvm.transform.module_pass(opt_level=0, name="FoldQuantization")
class FoldQuantization:
    """A requantization is one multiplication and one addition, as in ONNX's QLinearConv.

        quantize(sum * f + b, s, z)              →   quantize(sum * (f / s) + b / s, 1, z)
        quantize(dequantize(q, t, y) + x, s, z)  →   quantize(dequantize(q, t / s, y) + x / s, 1, z), if x can be so
        quantize(dequantize(q, t, y) * c, s, z)  →   quantize(dequantize(q, t * c / s, y), 1, z), c one number
        quantize(conv2d(x, W), s, z)             →   quantize(conv2d(x, W / s), 1, z), of floats; likewise matmul

    The quotients are rounded at compile time. What is only dequantized and quantized stays, to the bit.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with folded scales; the same object if there are none."""
        return rewrite_calls(module, {"quantize": _quantize})


def _quantize(call: relax.Call, scope: Scope) -> relax.Expr | None:
    scale, data = scalar_of(scope, call.args[1]), call.args[0]
    is_bytes = str(call.attrs.out_dtype) in (*BYTES, FLOAT8) and str(data.ty.dtype) == "float32"
    if scale is None or scale == 1 or not 1e-30 < scale < 1e30 or not is_bytes:
        return None
    divided = None if scope.call(data, "relax.dequantize") is not None else _divided(data, scale, scope)
    if divided is None:
        return None
    one = constant(np.float32(1))
    return relax.op.quantize(divided, one, call.args[2], int(call.attrs.axis), str(call.attrs.out_dtype))


def _divided(expr: relax.Expr, by: float, scope: Scope) -> relax.Expr | None:
    """`expr / by`, the division done on constants alone; None where that cannot be."""
    if (known := scope.constant(expr)) is not None:
        return _quotient(known, by)
    call, name = scope.value(expr), op_name(scope.value(expr))
    if name == "relax.dequantize":
        scale = scope.constant(call.args[1])
        changed = None if scale is None or scale.dtype != np.float32 else _quotient(scale, by)
        return _with(call, 1, changed, scope)
    if not scope.used_once(expr):
        return None
    if name in ("relax.add", "relax.subtract"):
        left, right = (_divided(each, by, scope) for each in call.args)
        return None if left is None or right is None else scope.emit(relax.Call(call.op, [left, right], call.attrs))
    if name == "relax.multiply":
        at = next((i for i in (0, 1) if scope.constant(call.args[i]) is not None), None)
        if at is None:
            return None
        scaled = _scaled(call.args[1 - at], scope.constant(call.args[at]), by, scope)
        return _with(call, at, _divided(call.args[at], by, scope), scope) if scaled is None else scaled
    if name in _WEIGHTED:
        weight = scope.constant(call.args[1])
        changed = None if weight is None or weight.dtype != np.float32 else _quotient(weight, by)
        return _with(call, 1, changed, scope)
    return _with(call, 0, _divided(call.args[0], by, scope), scope) if name in _MOVES else None


def _scaled(expr: relax.Expr, factor: Array | None, by: float, scope: Scope) -> relax.Expr | None:
    """`expr * factor / by`, the numbers in the scale that `expr` is dequantized by; None where they cannot be."""
    call = scope.call(expr, "relax.dequantize")
    scale = None if call is None or not scope.used_once(expr) else scope.constant(call.args[1])
    if call is None or scale is None or scale.dtype != np.float32 or scale.size != 1:
        return None
    if factor is None or factor.dtype != np.float32 or factor.size != 1 or factor.ndim > call.ty.ndim:
        return None
    return _with(call, 1, _quotient(scale.astype(np.float64) * float(factor.reshape(())), by), scope)


def _with(call: relax.Call, at: int, changed: relax.Expr | None, scope: Scope) -> relax.Expr | None:
    """The call with another argument."""
    if changed is None:
        return None
    return scope.emit(relax.Call(call.op, [changed if i == at else arg for i, arg in enumerate(call.args)], call.attrs))


def _quotient(array: Array, by: float) -> relax.Expr | None:
    """The constant divided, None where that is not finite."""
    with np.errstate(over="ignore"):
        found = (array.astype(np.float64) / by).astype(np.float32)
    return constant(found) if np.isfinite(found).all() else None
