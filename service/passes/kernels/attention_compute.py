"""Attention as tensor expressions, in the blocks that the template `cpu.attention` reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx

from relaxc.schedules.plan import PLAN, Plan

__all__ = ["AttentionSpec", "attention"]

Element = Callable[..., Any]


@dataclass(frozen=True)
class AttentionSpec:
    """What to compute, with operands as functions of the tensors, the indices of the batch and the positions.

    `logit(tensors, score, batch, m, n)` is None where the softmax is of the scores themselves. `masked`: what becomes
    of rows whose softmax is NaN; `nan`, `zero` where every logit is -∞, or `never_nan`. `place(*indices)`
    gives (batch, m, e) of an element of the result, whose sizes are `shape`.
    """

    batch: tuple[Any, ...]
    queries: Any
    keys: Any
    depth: Any
    width: Any
    masked: str
    query: Element
    key: Element
    value: Element
    logit: Element | None
    shape: tuple[Any, ...]
    place: Callable[..., tuple[Sequence[Any], Any, Any]]
    dtype: str | None = None
    """In which the result is stored; None for that of the sums."""
    rounded: Element | None = None
    """What becomes of a weight before it is multiplied: quantized and dequantized, say. Of 0 it makes 0.

    A function of (tensors, weight).
    """
    finish: Element | None = None
    """What becomes of a sum before it is stored: a function of (tensors, sum)."""
    plan: Plan | None = None
    """How it is to be computed; None for a GPU, whose templates follow no plans."""


def attention(*tensors: te.Tensor, spec: AttentionSpec) -> te.Tensor:
    """Compute `out = sum over n of softmax over n of logit(sum over d of q[b, m, d] * k[b, n, d]) * v[b, n, e]`"""
    batch = spec.batch
    d, n, along, across = (te.reduce_axis((0, size), "k") for size in (spec.depth, spec.keys, spec.keys, spec.keys))
    logits = te.compute(
        (*batch, spec.queries, spec.keys),
        lambda *at: te.sum(
            spec.query(tensors, at[:-2], at[-2], d.var) * spec.key(tensors, at[:-2], at[-1], d.var), axis=d
        ),
        name="attention_scores",
        attrs={} if spec.plan is None else {PLAN: spec.plan.to_json()},
    )
    if spec.logit is not None:
        scores, logit = logits, spec.logit
        logits = te.compute(
            logits.shape, lambda *at: logit(tensors, scores(*at), at[:-2], at[-2], at[-1]), name="attention_logits"
        )
    weights = _weights(logits, spec, along, across)
    if spec.rounded is not None:
        plain, rounded = weights, spec.rounded
        weights = te.compute(plain.shape, lambda *at: rounded(tensors, plain(*at)), name="attention_rounded")
    values = te.compute(
        (*batch, spec.queries, spec.width),
        lambda *at: te.sum(weights(*at[:-1], n) * spec.value(tensors, at[:-2], n.var, at[-1]), axis=n),
        name="attention_values",
    )

    def element(*at: Any) -> Any:
        where, m, e = spec.place(*at)
        value = values(*where, m, e)
        value = value if spec.finish is None else spec.finish(tensors, value)
        return value if spec.dtype in (None, str(value.ty.dtype)) else value.astype(spec.dtype)

    return te.compute(spec.shape, element, name="attention_out")


def _weights(logits: te.Tensor, spec: AttentionSpec, along: Any, across: Any) -> te.Tensor:
    rows = logits.shape[:-1]
    top = te.compute(rows, lambda *row: te.max(logits(*row, across), axis=across), name="attention_top")
    if spec.masked == "zero":
        lowest = tvm.tirx.min_value(logits.dtype)
        unbounded = top
        top = te.compute(rows, lambda *row: te.max(unbounded(*row), lowest), name="attention_bounded_top")
    power = te.compute(logits.shape, lambda *at: tirx.exp(logits(*at) - top(*at[:-1])), name="attention_power")
    total = te.compute(rows, lambda *row: te.sum(power(*row, along), axis=along), name="attention_total")
    zero, one = tirx.const(0, logits.dtype), tirx.const(1, logits.dtype)

    def weight(*at: Any) -> Any:
        by = total(*at[:-1])
        if spec.masked == "zero":
            by = tirx.Select(by == zero, one, by)
        value = power(*at) / by
        return tirx.if_then_else(tirx.isnan(value), zero, value) if spec.masked == "never_nan" else value

    return te.compute(logits.shape, weight, name="attention_weights")
