"""Normalizations; 16-bit floats in float32, as in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op


def _affine(em: Emitter, weight: Any, bias: Any, shape: Sequence[int], dtype: str) -> tuple[Any, Any]:
    """Scale and shift in `dtype`, ones and zeros where a layer has none."""
    scale = em.cast(weight, dtype) if weight is not None else em.const(np.ones(shape), dtype)
    shift = em.cast(bias, dtype) if bias is not None else em.const(np.zeros(shape), dtype)
    return scale, shift


def _layer_norm_of(em: Emitter, x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float, out: str) -> Any:
    wide = em.wide(x)
    scale, shift = _affine(em, weight, bias, shape, em.dtype(wide))
    axes = list(range(-len(shape), 0))
    return em.cast(em(op.nn.layer_norm(wide, scale, shift, axes=axes, epsilon=eps)), out)


@converts("aten.layer_norm.default", keep=True)
def _layer_norm(
    em: Emitter, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dims."""
    return _layer_norm_of(em, x, shape, weight, bias, eps, em.out_dtype())


@converts("aten.native_layer_norm.default")
def _native_layer_norm(em: Emitter, x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    return _layer_norm_of(em, x, shape, weight, bias, eps, em.out_dtype(0)), None, None


@converts("aten.rms_norm.default", keep=True)
def _rms_norm(em: Emitter, x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """x / sqrt(mean(x²) + eps) * weight over the last dims."""
    wide = em.wide(x)
    dtype = em.dtype(wide)
    if eps is None:
        eps = float(np.finfo(np.dtype(em.dtype(x)) if em.dtype(x) in ("float32", "float64") else np.float32).eps)
    axes = list(range(-len(shape), 0))
    mean = em(op.mean(em(op.multiply(wide, wide)), axis=axes, keepdims=True))
    scaled = em(op.multiply(wide, em(op.rsqrt(em(op.add(mean, em.const(eps, dtype)))))))
    if weight is not None:
        scaled = em(op.multiply(scaled, em.cast(weight, dtype)))
    return em.cast(scaled, em.out_dtype())


@converts("aten._native_batch_norm_legit_no_training.default")
def _batch_norm(em: Emitter, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias, by channel (dim 1)."""
    wide = em.wide(x)
    dtype = em.dtype(wide)
    scale, shift = _affine(em, weight, bias, em.static_shape(mean, "batch norm"), dtype)
    call = op.nn.batch_norm(
        wide, scale, shift, em.cast(mean, dtype), em.cast(var, dtype), axis=1, epsilon=eps, training=False
    )
    return em.cast(em(relax.TupleGetItem(em(call), 0)), em.out_dtype(0)), None, None


@converts("aten._native_batch_norm_legit.no_stats")
def _batch_statistics(em: Emitter, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    """Normalizes by the statistics of this very batch: what InstanceNorm is made of."""
    wide = em.wide(x)
    dtype, rank = em.dtype(wide), em.rank(x)
    axes = [axis for axis in range(rank) if axis != 1]
    centred = em(op.subtract(wide, em(op.mean(wide, axis=axes, keepdims=True))))
    variance = em(op.mean(em(op.multiply(centred, centred)), axis=axes, keepdims=True))
    result = em(op.multiply(centred, em(op.rsqrt(em(op.add(variance, em.const(eps, dtype)))))))
    across = [-1] + [1] * (rank - 2)
    if weight is not None:
        result = em(op.multiply(result, em.reshape(em.cast(weight, dtype), across)))
    if bias is not None:
        result = em(op.add(result, em.reshape(em.cast(bias, dtype), across)))
    return em.cast(result, em.out_dtype(0)), None, None


@converts("aten.native_group_norm.default")
def _group_norm(
    em: Emitter, x: Any, weight: Any, bias: Any, n: Any, channels: Any, pixels: Any, groups: int, eps: float
) -> Any:
    wide = em.wide(x)
    scale, shift = _affine(em, weight, bias, [channels], em.dtype(wide))
    axes = list(range(2, em.rank(x)))
    call = op.nn.group_norm(wide, scale, shift, num_groups=groups, channel_axis=1, axes=axes, epsilon=eps)
    return em.cast(em(call), em.out_dtype(0)), None, None
