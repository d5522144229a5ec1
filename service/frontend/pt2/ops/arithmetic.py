"""Arithmetic of two tensors, or a tensor and a number, in the node's dtype.

16-bit floats go through float32 where the number does not fit into 16 bits, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax

from relaxc.service.frontend.pt2.emit import HALF, Emitter, is_prim
from relaxc.service.frontend.pt2.ops.registry import converts

__all__ = ["exact"]

op = relax.op


def exact(value: Any, dtype: str) -> bool:
    """Return whether a number is the same after it was rounded to `dtype`."""
    if dtype not in HALF or not isinstance(value, int | float):
        return True
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    with np.errstate(over="ignore"):
        return float(np.asarray(value, dtype=kind)) == float(value)


def _arithmetic(em: Emitter, function: Callable[[Any, Any], Any], a: Any, b: Any, *, wide: bool = False) -> Any:
    """function(a, b) in the node's dtype; one of them may be a number or a size."""
    out = em.out_dtype()
    dtype = "float32" if out in HALF and (wide or not exact(a, out) or not exact(b, out)) else out
    return em.cast(em(function(em.tensor(a, dtype), em.tensor(b, dtype))), out)


def _scaled(em: Emitter, b: Any, alpha: Any) -> Any:
    if isinstance(alpha, int | float) and alpha == 1:
        return b
    if isinstance(b, int | float) and isinstance(alpha, int | float):
        return b * alpha
    return _arithmetic(em, op.multiply, b, alpha)


@converts("aten.add.Tensor", "aten.add.Scalar")
def _add(em: Emitter, a: Any, b: Any, alpha: Any = 1) -> Any:
    if em.out_dtype() == "bool":
        return em(op.logical_or(em.tensor(a, "bool"), em.tensor(b, "bool")))
    return _arithmetic(em, op.add, a, _scaled(em, b, alpha))


@converts("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(em: Emitter, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _arithmetic(em, op.subtract, a, _scaled(em, b, alpha))


@converts("aten.rsub.Tensor", "aten.rsub.Scalar")
def _rsub(em: Emitter, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _arithmetic(em, op.subtract, b, _scaled(em, a, alpha))


@converts("aten.mul.Tensor", "aten.mul.Scalar")
def _mul(em: Emitter, a: Any, b: Any) -> Any:
    if em.out_dtype() == "bool":
        return em(op.logical_and(em.tensor(a, "bool"), em.tensor(b, "bool")))
    return _arithmetic(em, op.multiply, a, b)


@converts("aten.div.Tensor", "aten.div.Scalar")
def _div(em: Emitter, a: Any, b: Any) -> Any:
    return _arithmetic(em, op.divide, a, b)


@converts("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(em: Emitter, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _arithmetic(em, op.divide, a, b)
    if em.out_dtype().startswith(("int", "uint")):
        return _integer_quotient(em, a, b, rounding_mode)
    if rounding_mode == "trunc":
        return _arithmetic(em, lambda x, y: op.trunc(em(op.divide(x, y))), a, b, wide=True)
    return _arithmetic(em, lambda x, y: _float_floor_quotient(em, x, y), a, b, wide=True)


@converts("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _floor_divide(em: Emitter, a: Any, b: Any) -> Any:
    return _div_mode(em, a, b, "floor")


def _integer_quotient(em: Emitter, a: Any, b: Any, rounding_mode: str) -> Any:
    return _arithmetic(em, op.floor_divide if rounding_mode == "floor" else op.divide, a, b)


def _float_floor_quotient(em: Emitter, x: Any, y: Any) -> Any:
    """As torch has it: (x - fmod(x, y)) / y is a whole number but for rounding, one too many where the signs differ.

    By 0 it is the quotient, and a 0 has the quotient's sign.
    """
    rest, below = _fraction(em, x, y)
    zero, one, half = (em.const(number, em.dtype(rest)) for number in (0, 1, 0.5))
    towards_zero = em(op.divide(em(op.subtract(x, rest)), y))
    exact = em(op.where(below, em(op.subtract(towards_zero, one)), towards_zero))
    quotient = em(op.divide(x, y))
    nothing = em(op.multiply(quotient, zero))
    whole = em(op.where(em(op.equal(exact, zero)), nothing, em(op.floor(em(op.add(exact, half))))))
    return op.where(em(op.equal(y, zero)), quotient, whole)


def _float_remainder(em: Emitter, x: Any, y: Any) -> Any:
    rest, below = _fraction(em, x, y)
    return em(op.where(below, em(op.add(rest, y)), rest))


def _fraction(em: Emitter, x: Any, y: Any) -> tuple[Any, Any]:
    """fmod(x, y), and whether it is on the other side of 0 than y."""
    rest = em(op.mod(x, y))
    zero = em.const(0, em.dtype(rest))
    opposite = em(op.logical_xor(em(op.less(rest, zero)), em(op.less(y, zero))))
    return rest, em(op.logical_and(em(op.not_equal(rest, zero)), opposite))


@converts("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def _remainder(em: Emitter, a: Any, b: Any) -> Any:
    """The sign is the divisor's."""
    if em.out_dtype().startswith(("int", "uint")):
        return _arithmetic(em, op.floor_mod, a, b)
    return _arithmetic(em, lambda x, y: _float_remainder(em, x, y), a, b, wide=True)


@converts("aten.fmod.Tensor", "aten.fmod.Scalar")
def _fmod(em: Emitter, a: Any, b: Any) -> Any:
    """The sign is the dividend's."""
    return _arithmetic(em, op.mod, a, b, wide=True)


@converts("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(em: Emitter, a: Any, b: Any) -> Any:
    """Small whole exponents and roots are spelled out: they are exact, and pow is slow."""
    out = em.out_dtype()
    if isinstance(b, int | float) and not is_prim(a):
        x = em.wide(em.cast(a, out))
        special: dict[float, Callable[[], Any]] = {
            0.5: lambda: op.sqrt(x),
            -0.5: lambda: op.rsqrt(x),
            1: lambda: x,
            2: lambda: op.multiply(x, x),
            3: lambda: op.multiply(em(op.multiply(x, x)), x),
            -1: lambda: op.divide(em.const(1, em.dtype(x)), x),
        }
        if b in special and (out in (*HALF, "float32", "float64") or b in (1, 2, 3)):
            return em.cast(em(special[b]()), out)
    if out.startswith(("int", "uint")):
        return em(op.power(em.tensor(a, out), em.tensor(b, out)))
    return _arithmetic(em, op.power, a, b, wide=True)


@converts("aten.atan2.default")
def _atan2(em: Emitter, a: Any, b: Any) -> Any:
    return _arithmetic(em, op.atan2, a, b, wide=True)


def _extremum(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def convert(em: Emitter, a: Any, b: Any) -> Any:
        if em.out_dtype() == "bool":
            logical = op.logical_or if function is op.maximum else op.logical_and
            return em(logical(em.tensor(a, "bool"), em.tensor(b, "bool")))
        return _arithmetic(em, function, a, b)

    return convert


converts("aten.maximum.default", "aten.max.other")(_extremum(op.maximum))
converts("aten.minimum.default", "aten.min.other")(_extremum(op.minimum))
