"""Pooling. The padding after the last element is computed, so that torch's rule for `ceil_mode` holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, topi

from relaxc.service.frontend.pt2.emit import Emitter, is_prim
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op

_MAX = {1: op.nn.max_pool1d, 2: op.nn.max_pool2d, 3: op.nn.max_pool3d}
_AVG = {1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}


def _each(values: Any, rank: int) -> list[int]:
    found = [values] if isinstance(values, int) else list(values)
    return found * rank if len(found) == 1 else found


def _padding(em: Emitter, x: Any, out: list[Any], window: list[int], stride: list[int], pad: list[int]) -> list[int]:
    """Before and after each dim, such that exactly the windows of the result fit."""
    after = []
    for size, length, width, step, before in zip(em.shape(x)[-len(out) :], out, window, stride, pad, strict=True):
        if is_prim(size) or is_prim(length):
            after.append(before)
        else:
            after.append(max((length - 1) * step + width - size - before, 0))
    return [*pad, *after]


def _batched(em: Emitter, x: Any, rank: int) -> Any:
    return em.reshape(x, [1, *em.shape(x)]) if em.rank(x) == rank + 1 else x


def _max_pool(
    em: Emitter, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    rank = int(em.node.target.name().split("pool")[1][0])
    kernel, dilation, padding = _each(kernel, rank), _each(dilation, rank), _each(padding, rank)
    stride = _each(stride, rank) if stride else kernel
    shape = em.out_shape(0 if isinstance(em.node.meta["val"], tuple | list) else None)
    window = [(width - 1) * spread + 1 for width, spread in zip(kernel, dilation, strict=True)]
    _refuse_symbolic_ceil(em, shape[-rank:], ceil)
    around = _padding(em, x, shape[-rank:], window, stride, padding)
    pooled = em(_MAX[rank](_batched(em, x, rank), kernel, stride, around, dilation))
    return em.reshape(pooled, shape)


def _refuse_symbolic_ceil(em: Emitter, out: list[Any], ceil: bool) -> None:
    if ceil and any(map(is_prim, out)):
        raise em.refuse("ceil_mode with a size that is not known when compiling")


for _rank in (1, 2, 3):
    converts(f"aten.max_pool{_rank}d.default", keep=True)(_max_pool)


@converts("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def _max_pool_with_indices(em: Emitter, *args: Any) -> Any:
    return _max_pool(em, *args), None


def _avg_pool(
    em: Emitter,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    include_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    rank = int(em.node.target.name().split("pool")[1][0])
    if em.out_dtype().startswith(("int", "uint")):
        raise em.refuse("an average of integers")
    kernel, padding = _each(kernel, rank), _each(padding, rank)
    stride = _each(stride, rank) if stride else kernel
    shape = em.out_shape()
    _refuse_symbolic_ceil(em, shape[-rank:], ceil)
    around = _padding(em, x, shape[-rank:], kernel, stride, padding)
    data = _batched(em, em.wide(x), rank)
    plain = divisor is None and around[:rank] == around[rank:] and (include_padding or not any(around))
    pooled = em(_AVG[rank](data, kernel, stride, around, count_include_pad=True))
    if not plain:
        pooled = _corrected(em, pooled, x, kernel, stride, padding, include_padding, divisor)
    return em.cast(em.reshape(pooled, shape), em.out_dtype())


def _corrected(
    em: Emitter,
    pooled: Any,
    x: Any,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    include_padding: bool,
    divisor: int | None,
) -> Any:
    """Window means times kernel size over torch's divisor, which near the edge is smaller."""
    rank = len(kernel)
    area = math.prod(kernel)
    if divisor is not None:
        return em(op.multiply(pooled, em.const(area / divisor, em.dtype(pooled))))
    sizes, out = em.shape(x)[-rank:], em.shape(pooled)[-rank:]
    if any(map(is_prim, sizes)):
        raise em.refuse("padding that counts, or ceil_mode, with a size that is not known when compiling")
    counts = np.ones([1] * rank)
    for axis in range(rank):
        begin = np.arange(out[axis]) * stride[axis] - padding[axis]
        end = np.minimum(begin + kernel[axis], sizes[axis] + padding[axis])
        if not include_padding:
            begin, end = np.maximum(begin, 0), np.minimum(end, sizes[axis])
        counts = counts * (end - begin).reshape([-1] + [1] * (rank - axis - 1))
    return em(op.multiply(pooled, em.const(area / counts, em.dtype(pooled))))


for _rank in (1, 2, 3):
    converts(f"aten.avg_pool{_rank}d.default")(_avg_pool)


@converts(
    "aten.adaptive_avg_pool1d.default",
    "aten._adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool3d.default",
)
def _adaptive_avg_pool(em: Emitter, x: Any, size: Sequence[Any]) -> Any:
    """Bins of floor(i·n/m) to ceil((i+1)·n/m)."""
    if any(map(is_prim, size)):
        raise em.refuse("a result size that is not known when compiling")
    rank = len(size)
    function = {1: op.nn.adaptive_avg_pool1d, 2: op.nn.adaptive_avg_pool2d, 3: op.nn.adaptive_avg_pool3d}[rank]
    pooled = em(function(_batched(em, em.wide(x), rank), list(size)))
    return em.cast(em.reshape(pooled, em.out_shape()), em.out_dtype())


@converts("aten.adaptive_max_pool1d.default", "aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def _adaptive_max_pool(em: Emitter, x: Any, size: Sequence[Any]) -> Any:
    """As the average, without the places of the maxima."""
    if any(map(is_prim, size)):
        raise em.refuse("a result size that is not known when compiling")
    rank = len(size)
    function = {1: topi.nn.adaptive_pool1d, 2: topi.nn.adaptive_pool, 3: topi.nn.adaptive_pool3d}[rank]
    layout = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[rank]
    begins = {"relaxc.extreme": True}  # at infinity
    pooled = em.bb.emit_te(function, _batched(em, x, rank), list(size), "max", layout, primfunc_attrs=begins)
    return em.reshape(pooled, em.out_shape(0)), None
