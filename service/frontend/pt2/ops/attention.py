"""Scaled dot-product attention, kept whole by torch and spelled out here as two matrix products and a softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.frontend.pt2.emit import HALF, Emitter, is_prim
from relaxc.service.frontend.pt2.ops.activation import dead_rows
from relaxc.service.frontend.pt2.ops.linear import matmul
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op


@converts("aten.scaled_dot_product_attention.default", keep=True)
def _attention(
    em: Emitter,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
) -> Any:
    """softmax(scale * q @ k.T + mask) @ v over the last two dims.

    q[..., h, m, d], k[..., g, n, d], v[..., g, n, e], with g = h, or h a multiple of g when `grouped`. A boolean mask
    keeps where it is true, and a row that keeps nothing gives zeros. A causal mask starts at the top left. No guard of
    the export says which sizes are the same, so calls are held to it here.
    """
    if dropout:
        raise em.refuse("dropout at inference")
    if grouped:
        key, value = _repeat_heads(em, key, query), _repeat_heads(em, value, query)
    *batch, rows, _ = em.shape(query)
    columns = em.shape(key)[-2]
    key = _alike(em, key, [*batch, columns, em.shape(query)[-1]])
    value = _alike(em, value, [*batch, columns, em.shape(value)[-1]])
    mask = None if mask is None else _alike(em, mask, [*batch, rows, columns])
    dtype = em.out_dtype()
    rank = em.rank(key)
    turned = em.permute(key, [*range(rank - 2), rank - 1, rank - 2])
    # Scores of 16-bit operands stay in float32 until the softmax, where fp16 could overflow.
    product = em(op.matmul(query, turned, out_dtype="float32" if dtype in HALF else None))
    scores = em(op.multiply(product, em.const(_scale(em, query, scale), em.dtype(product))))
    scores, dead = _masked(em, scores, mask, causal)
    weights = em(op.nn.softmax(scores, axis=-1))
    if dead is not None:
        weights = em(op.where(dead, em.const(0, em.dtype(weights)), weights))
    return matmul(em, em.cast(weights, dtype), value, dtype)


def _alike(em: Emitter, x: Any, shape: list[Any]) -> Any:
    """`x` with the sizes at the end of `shape`, but for those that are broadcast from or to 1."""
    own = em.shape(x)
    if len(own) > len(shape):
        return x
    wanted = shape[len(shape) - len(own) :]
    return em.held(x, [old if 1 in (old, new) else new for old, new in zip(own, wanted, strict=True)])


def _scale(em: Emitter, query: Any, scale: float | None) -> float:
    if scale is not None:
        return float(scale)
    width = em.shape(query)[-1]
    if is_prim(width):
        raise em.refuse("a head size that is not known when compiling")
    return 1 / math.sqrt(width)


def _repeat_heads(em: Emitter, x: Any, query: Any) -> Any:
    """x[..., g, n, d] → [..., h, n, d], each head h / g times in a row."""
    shape, heads = em.shape(x), em.shape(query)[-3]
    if shape[-3] == heads:
        return x
    if is_prim(heads) or is_prim(shape[-3]):
        raise em.refuse("a number of heads that is not known when compiling")
    groups = heads // shape[-3]
    wider = em.reshape(x, [*shape[:-2], 1, *shape[-2:]])
    wider = em.broadcast(wider, [*shape[:-2], groups, *shape[-2:]])
    return em.reshape(wider, [*shape[:-3], heads, *shape[-2:]])


def _masked(em: Emitter, scores: Any, mask: Any, causal: bool) -> tuple[Any, Any]:
    """Scores with the mask in them, and which rows have nothing left (None when none can)."""
    dtype = em.dtype(scores)
    low = em.const(-math.inf, dtype)
    if causal:
        scores = em(op.where(_causal(em, *em.shape(scores)[-2:]), scores, low))
    if mask is None:
        return scores, None
    keeps = em.dtype(mask) == "bool"
    scores = em(op.where(mask, scores, low) if keeps else op.add(scores, em.cast(mask, dtype)))
    return scores, dead_rows(em, scores)


def _causal(em: Emitter, rows: Any, columns: Any) -> Any:
    if not is_prim(rows) and not is_prim(columns):
        return em.const(np.tri(rows, columns, dtype=bool), "bool")
    row = em.reshape(em(op.arange(0, rows, 1, "int64")), [rows, 1])
    column = em.reshape(em(op.arange(0, columns, 1, "int64")), [1, columns])
    return em(op.greater_equal(row, column))
