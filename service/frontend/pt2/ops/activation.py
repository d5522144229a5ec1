"""Activations and softmax; 16-bit floats in float32, as in torch."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter
from relaxc.service.frontend.pt2.ops.registry import converts

__all__ = ["dead_rows"]

op = relax.op


@converts("aten.gelu.default")
def _gelu(em: Emitter, x: Any, approximate: str = "none") -> Any:
    function = op.nn.gelu_tanh if approximate == "tanh" else op.nn.gelu
    return em.cast(em(function(em.wide(x))), em.out_dtype())


@converts("aten.clamp.default", "aten.clamp.Tensor", "aten.clamp_min.default", "aten.clamp_min.Tensor")
def _clamp(em: Emitter, x: Any, low: Any = None, high: Any = None) -> Any:
    out = em.out_dtype()
    dtype = "int8" if out == "bool" else out
    x = em.cast(x, dtype)
    if low is not None and low != -math.inf:
        x = em(op.maximum(x, em.tensor(low, dtype)))
    if high is not None and high != math.inf:
        x = em(op.minimum(x, em.tensor(high, dtype)))
    return em.cast(x, out)


@converts("aten.clamp_max.default", "aten.clamp_max.Tensor")
def _clamp_max(em: Emitter, x: Any, high: Any) -> Any:
    return _clamp(em, x, None, high)


@converts("aten.hardtanh.default")
def _hardtanh(em: Emitter, x: Any, low: Any = -1, high: Any = 1) -> Any:
    return _clamp(em, x, low, high)


@converts("aten.relu6.default", keep=True)
def _relu6(em: Emitter, x: Any) -> Any:
    return _clamp(em, x, 0, 6)


@converts("aten.leaky_relu.default")
def _leaky_relu(em: Emitter, x: Any, slope: float = 0.01) -> Any:
    x = em.wide(x)
    return em.cast(em(op.nn.leakyrelu(x, slope)), em.out_dtype())


@converts("aten.prelu.default", "aten._prelu_kernel.default")
def _prelu(em: Emitter, x: Any, weight: Any) -> Any:
    """x where positive, else weight * x, a weight for each channel (dim 1)."""
    if em.rank(x) >= 2 and em.rank(weight) == 1 and em.shape(weight) != [1]:
        weight = em.reshape(weight, [-1] + [1] * (em.rank(x) - 2))
    return em(op.where(em(op.greater(x, em.const(0, em.dtype(x)))), x, em(op.multiply(x, weight))))


@converts("aten.elu.default")
def _elu(em: Emitter, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    """scale * (x where positive, else alpha * (exp(input_scale * x) - 1))."""
    x = em.wide(x)
    dtype = em.dtype(x)
    zero = em.const(0, dtype)
    inner = em(op.minimum(x, zero))  # exp of a large positive x would be infinite, and only the other branch is used
    grown = em(op.subtract(em(op.exp(em(op.multiply(inner, em.const(input_scale, dtype))))), em.const(1, dtype)))
    negative = em(op.multiply(grown, em.const(alpha * scale, dtype)))
    positive = em(op.multiply(x, em.const(scale, dtype)))
    return em.cast(em(op.where(em(op.greater(x, zero)), positive, negative)), em.out_dtype())


@converts("aten._softmax.default", "aten.softmax.int", "aten._safe_softmax.default")
def _softmax(em: Emitter, x: Any, dim: int, *_: Any) -> Any:
    """A row of only -inf gives NaN, and zeros for _safe_softmax."""
    wide = em.wide(em.cast(x, em.out_dtype()) if em.out_dtype() == "float32" else x)
    if em.rank(x) == 0:
        return em.const(1, em.out_dtype())
    result = em(op.nn.softmax(wide, axis=dim % em.rank(x)))
    if em.node.target.name().startswith("aten::_safe"):
        dead = dead_rows(em, wide, dim % em.rank(x))
        result = em(op.where(dead, em.const(0, em.dtype(wide)), result))
    return em.cast(result, em.out_dtype())


def dead_rows(em: Emitter, scores: Any, axis: int = -1) -> Any:
    """Return where every score of a row is -inf; the row's dim is kept.

    By comparisons, which the pass that recognizes such a softmax looks for.
    """
    alive = em.cast(em(op.greater(scores, em.const(-math.inf, em.dtype(scores)))), "int8")
    return em(op.equal(em(op.max(alive, axis=[axis], keepdims=True)), em.const(0, "int8")))


@converts("aten._log_softmax.default", "aten.log_softmax.int")
def _log_softmax(em: Emitter, x: Any, dim: int, *_: Any) -> Any:
    if em.rank(x) == 0:
        return em.const(0, em.out_dtype())
    rank = em.rank(x)
    last = dim % rank == rank - 1  # TOPI has log_softmax over the last dim alone
    axes = [axis for axis in range(rank) if axis != dim % rank] + [dim % rank]
    moved = em.wide(x) if last else em.permute(em.wide(x), axes)
    result = em(op.nn.log_softmax(moved, axis=-1))
    back = result if last else em.permute(result, [axes.index(axis) for axis in range(rank)])
    return em.cast(back, em.out_dtype())
