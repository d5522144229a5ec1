"""Functions of one tensor, casts and copies.

float16 and bfloat16 go through float32 for transcendental functions, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from relaxc.service.frontend.pt2.emit import HALF, Emitter
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op


def _unary(name: str, function: Callable[[Any], Any], *, wide: bool = False, keep: bool = False) -> None:
    """A function of one tensor; `wide` computes 16-bit floats in float32. Integers are cast to the result's dtype."""

    @converts(name, keep=keep)
    def convert(em: Emitter, x: Any) -> Any:
        x = em.cast(x, em.out_dtype())
        if em.out_dtype() == "bool":  # the sign of a boolean
            return x
        return em.cast(em(function(em.wide(x) if wide else x)), em.out_dtype())


for _name in ("abs", "ceil", "floor", "sign", "trunc"):
    _unary(f"aten.{_name}.default", getattr(op, _name))
for _name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log", "rsqrt"):
    _unary(f"aten.{_name}.default", getattr(op, _name), wide=True)
for _name in ("sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"):
    _unary(f"aten.{_name}.default", getattr(op, _name), wide=True)
_unary("aten.neg.default", op.negative)
_unary("aten.relu.default", op.nn.relu)
_unary("aten.silu.default", op.nn.silu, wide=True, keep=True)
_unary("aten.square.default", op.square)


@converts("aten.reciprocal.default")
def _reciprocal(em: Emitter, x: Any) -> Any:
    x = em.cast(x, em.out_dtype())
    return em(op.divide(em.const(1, em.dtype(x)), x))


@converts("aten.round.default")
def _round(em: Emitter, x: Any) -> Any:
    """Halves go to the even neighbour: x = floor(x) + d, up where d > 0.5, or d = 0.5 and floor(x) is odd."""
    if em.dtype(x) not in (*HALF, "float32", "float64"):
        return x
    wide = em.wide(x)
    dtype = em.dtype(wide)
    below = em(op.floor(wide))
    rest = em(op.subtract(wide, below))
    half = em.const(0.5, dtype)
    odd = em(op.subtract(below, em(op.multiply(em(op.floor(em(op.multiply(below, half)))), em.const(2, dtype)))))
    tie = em(op.where(em(op.equal(rest, half)), odd, em.cast(em(op.greater(rest, half)), dtype)))
    return em.cast(em(op.add(below, tie)), em.out_dtype())


@converts("aten.log2.default", "aten.log10.default", "aten.log1p.default")
def _logarithm(em: Emitter, x: Any) -> Any:
    """Those of powers of the base are whole, as torch's are: a quotient of logarithms may be less."""
    kind = em.node.target.name().split("::")[1]
    x = em.wide(em.cast(x, em.out_dtype()))
    if kind == "log1p":
        return em.cast(_log1p(em, x, em.dtype(x)), em.out_dtype())
    dtype = em.dtype(x)
    symbol = kind if dtype == "float64" else f"{kind}f"  # the C library's, in CUDA under the same name

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *at: tirx.call_pure_extern(dtype, symbol, data(*at)), name=kind)

    return em.cast(em.bb.emit_te(compute, x, primfunc_name_hint=kind), em.out_dtype())


def _log1p(em: Emitter, x: Any, dtype: str) -> Any:
    """log(u) * x / (u - 1) with u = 1 + x, exact to rounding for small x (Kahan; Goldberg 1991, theorem 4)."""
    one = em.const(1, dtype)
    u = em(op.add(x, one))
    small = em(op.equal(u, one))
    scale = em(op.divide(x, em(op.where(small, one, em(op.subtract(u, one))))))
    finite = em(op.multiply(em(op.log(u)), scale))
    infinite = em(op.equal(x, em.const(math.inf, dtype)))
    return em(op.where(infinite, x, em(op.where(small, x, finite))))


@converts("aten.expm1.default")
def _expm1(em: Emitter, x: Any) -> Any:
    """(u - 1) * x / log(u) with u = exp(x), exact to rounding for small x (Kahan)."""
    x = em.wide(em.cast(x, em.out_dtype()))
    dtype = em.dtype(x)
    one = em.const(1, dtype)
    u = em(op.exp(x))
    less = em(op.subtract(u, one))
    near = em(op.less(em(op.abs(x)), em.const(0.5, dtype)))
    log = em(op.where(em(op.equal(u, one)), one, em(op.log(u))))
    corrected = em(op.where(em(op.equal(u, one)), x, em(op.divide(em(op.multiply(less, x)), log))))
    return em.cast(em(op.where(near, corrected, less)), em.out_dtype())


@converts("aten.isnan.default", "aten.isinf.default", "aten.isfinite.default")
def _classify(em: Emitter, x: Any) -> Any:
    kind = em.node.target.name().split("::")[1]
    if em.dtype(x) not in (*HALF, "float32", "float64"):
        return em.broadcast(em.const(kind == "isfinite", "bool"), em.out_shape())
    # Spelled out as x != x, NaN would be simplified away.
    return em({"isnan": op.isnan, "isinf": op.isinf, "isfinite": op.isfinite}[kind](em.wide(x)))


@converts("aten._to_copy.default")
def _to_copy(em: Emitter, x: Any, *_: Any) -> Any:
    return em.cast(x, em.out_dtype())


@converts(
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.lift_fresh_copy.default",
)
def _same(em: Emitter, x: Any, *_: Any) -> Any:
    return x


@converts("aten.copy.default")
def _copy(em: Emitter, x: Any, source: Any, *_: Any) -> Any:
    return em.broadcast(em.cast(source, em.out_dtype()), em.out_shape())
