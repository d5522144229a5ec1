"""Reductions; 16-bit floats are accumulated in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from relaxc.service.frontend.pt2.emit import Emitter
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op


_OF_NOTHING = {op.sum: 0, op.prod: 1, op.mean: math.nan, op.max: 0}
"""What torch has of no elements (a maximum is of booleans then): TVM has loops of nothing, and writes nothing."""


def _axes(em: Emitter, x: Any, dims: Any) -> list[int]:
    """The dims of a reduction: none and an empty list mean all."""
    rank = em.rank(x)
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return list(range(rank))
    return [dim % max(rank, 1) for dim in ([dims] if isinstance(dims, int) else dims)]


def _reduce(em: Emitter, function: Callable[..., Any], x: Any, dims: Any, keep: bool, out: str) -> Any:
    if em.rank(x) == 0:
        return em.cast(x, out)
    if 0 in [size for size in em.shape(x) if isinstance(size, int)] and function in _OF_NOTHING:
        return em.broadcast(em.const(_OF_NOTHING[function], out), em.out_shape())
    return em.cast(em(function(x, axis=_axes(em, x, dims), keepdims=keep)), out)


def _count(em: Emitter, x: Any, dims: Any, dtype: str) -> Any:
    """The number of elements that go into each result, as a tensor of rank 0."""
    size: Any = 1
    for axis in _axes(em, x, dims) if em.rank(x) else []:
        size = size * em.shape(x)[axis]
    return em.tensor(size, dtype)


@converts("aten.sum.dim_IntList", "aten.sum.default")
def _sum(em: Emitter, x: Any, dims: Any = None, keep: bool = False, *_: Any) -> Any:
    dims, keep = (None, False) if em.node.target.name() == "aten::sum" else (dims, keep)
    return _reduce(em, op.sum, em.wide(em.cast(x, em.out_dtype())), dims, keep, em.out_dtype())


@converts("aten.mean.dim", "aten.mean.default")
def _mean(em: Emitter, x: Any, dims: Any = None, keep: bool = False, *_: Any) -> Any:
    dims, keep = (None, False) if em.node.target.name() == "aten::mean" else (dims, keep)
    wide = em.wide(em.cast(x, em.out_dtype()))
    return _reduce(em, op.mean, wide, dims, keep, em.out_dtype())


@converts("aten.prod.default", "aten.prod.dim_int")
def _prod(em: Emitter, x: Any, dim: Any = None, keep: bool = False, *_: Any) -> Any:
    dims, keep = (None, False) if em.node.target.name() == "aten::prod" else (dim, keep)
    return _reduce(em, op.prod, em.wide(em.cast(x, em.out_dtype())), dims, keep, em.out_dtype())


@converts("aten.amax.default")
def _amax(em: Emitter, x: Any, dims: Any = (), keep: bool = False) -> Any:
    return _extreme(em, op.max, x, dims, keep)


@converts("aten.amin.default")
def _amin(em: Emitter, x: Any, dims: Any = (), keep: bool = False) -> Any:
    return _extreme(em, op.min, x, dims, keep)


def _extreme(em: Emitter, function: Callable[..., Any], x: Any, dims: Any, keep: bool) -> Any:
    out = em.dtype(x)
    return _reduce(em, function, em.cast(x, "int8") if out == "bool" else x, dims, keep, out)


@converts("aten.max.default", "aten.min.default")
def _extreme_of_all(em: Emitter, x: Any) -> Any:
    return _extreme(em, op.max if em.node.target.name() == "aten::max" else op.min, x, None, False)


@converts("aten.max.dim", "aten.min.dim")
def _extreme_with_index(em: Emitter, x: Any, dim: int, keep: bool = False) -> Any:
    """Values, and where the first of them is."""
    largest = em.node.target.name().startswith("aten::max")
    values = _extreme(em, op.max if largest else op.min, x, dim, keep)
    return values, _arg(em, op.argmax if largest else op.argmin, x, dim, keep)


@converts("aten.argmax.default", "aten.argmin.default")
def _argmax(em: Emitter, x: Any, dim: int | None = None, keep: bool = False) -> Any:
    function = op.argmax if em.node.target.name() == "aten::argmax" else op.argmin
    return _arg(em, function, x, dim, keep)


def _arg(em: Emitter, function: Callable[..., Any], x: Any, dim: int | None, keep: bool) -> Any:
    if em.rank(x) == 0:
        return em.const(0, "int64")
    x = em.cast(x, "int8") if em.dtype(x) == "bool" else em.wide(x)
    if dim is None and not keep:
        x, dim = em.reshape(x, [-1]), 0
    return em.cast(em(function(x, axis=dim, keepdims=keep)), "int64")


@converts("aten.any.default", "aten.any.dim", "aten.any.dims")
def _any(em: Emitter, x: Any, dims: Any = None, keep: bool = False) -> Any:
    return em.cast(_exists(em, em.cast(x, "bool"), dims, keep), em.out_dtype())


@converts("aten.all.default", "aten.all.dim", "aten.all.dims")
def _all(em: Emitter, x: Any, dims: Any = None, keep: bool = False) -> Any:
    false = em(op.logical_not(em.cast(x, "bool")))
    return em.cast(em(op.logical_not(_exists(em, false, dims, keep))), em.out_dtype())


def _exists(em: Emitter, x: Any, dims: Any, keep: bool) -> Any:
    """Whether one is true, which is not so of none: their maximum may be the least number."""
    return em(op.greater(_reduce(em, op.max, em.cast(x, "int8"), dims, keep, "int8"), em.const(0, "int8")))


@converts("aten.var.correction")
def _var(em: Emitter, x: Any, dims: Any = None, correction: Any = None, keep: bool = False) -> Any:
    return _variance(em, x, dims, correction, keep, em.out_dtype())[0]


@converts("aten.var_mean.correction", keep=True)
def _var_mean(em: Emitter, x: Any, dims: Any = None, correction: Any = None, keep: bool = False) -> Any:
    return _variance(em, x, dims, correction, keep, em.out_dtype(0))


def _variance(em: Emitter, x: Any, dims: Any, correction: Any, keep: bool, out: str) -> tuple[Any, Any]:
    """sum((x - mean)²) / (n - correction), and the mean; correction is 1 by default."""
    wide = em.wide(x)
    dtype, axes = em.dtype(wide), _axes(em, x, dims)
    mean = em(op.mean(wide, axis=axes, keepdims=True))
    centred = em(op.subtract(wide, mean))
    total = em(op.sum(em(op.multiply(centred, centred)), axis=axes, keepdims=keep))
    fewer = 1.0 if correction is None else float(correction)
    divisor = em(op.subtract(_count(em, x, dims, dtype), em.const(fewer, dtype)))
    divisor = em(op.maximum(divisor, em.const(0, dtype)))
    shown = mean if keep else em.reshape(mean, [size for a, size in enumerate(em.shape(x)) if a not in axes])
    return em.cast(em(op.divide(total, divisor)), out), em.cast(shown, out)


@converts("aten.linalg_vector_norm.default")
def _vector_norm(em: Emitter, x: Any, order: float = 2, dims: Any = None, keep: bool = False, *_: Any) -> Any:
    wide, out = em.wide(em.cast(x, em.out_dtype())), em.out_dtype()
    dtype = em.dtype(wide)
    size = em(op.abs(wide))
    if order in (math.inf, -math.inf):
        return _reduce(em, op.max if order > 0 else op.min, size, dims, keep, out)
    if order == 0:
        return _reduce(em, op.sum, em.cast(em.cast(size, "bool"), dtype), dims, keep, out)
    if order == 1:
        return _reduce(em, op.sum, size, dims, keep, out)
    if order == 2:
        return em.cast(em(op.sqrt(_reduce(em, op.sum, em(op.multiply(size, size)), dims, keep, dtype))), out)
    total = _reduce(em, op.sum, em(op.power(size, em.const(order, dtype))), dims, keep, dtype)
    return em.cast(em(op.power(total, em.const(1 / order, dtype))), out)


@converts("aten.cumsum.default", "aten.cumprod.default")
def _cumulate(em: Emitter, x: Any, dim: int, *_: Any) -> Any:
    out = em.out_dtype()
    if em.rank(x) == 0:
        return em.cast(x, out)
    function = op.cumsum if em.node.target.name() == "aten::cumsum" else op.cumprod
    wide = em.wide(em.cast(x, out))
    return em.cast(em(function(wide, axis=dim % em.rank(x), dtype=em.dtype(wide))), out)
