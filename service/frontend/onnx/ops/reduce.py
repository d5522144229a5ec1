"""Reductions over axes, ArgMax and ArgMin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.axes import gathered
from relaxc.service.frontend.onnx.ops.common import (
    cast,
    full_precision,
    is_float,
    is_integer,
    is_low_precision,
    reshaped,
    scalar,
)
from relaxc.service.frontend.onnx.ops.registry import op

__all__ = ["highest", "lowest", "lp_norm"]

Reduce = Callable[[Node, Any, list[int], bool], Any]


def _plain(function: Callable[..., Any]) -> Reduce:
    return lambda node, x, axes, keep: function(x, axes, keep)


def _sum_of(function: Callable[[Node, Any], Any]) -> Reduce:
    return lambda node, x, axes, keep: relax.op.sum(node.emit(function(node, x)), axes, keep)


def _square(node: Node, x: Any) -> Any:
    return relax.op.multiply(x, x)


def _l2(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
    total = node.emit(relax.op.sum(node.emit(_square(node, x)), axes, keep))
    return full_precision(node, relax.op.sqrt, total)


def _log_sum(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
    return full_precision(node, relax.op.log, node.emit(relax.op.sum(x, axes, keep)))


def _log_sum_exp(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
    """`max + log Σ exp(x - max)`, which does not overflow."""
    if is_integer(dtype_of(x)):
        raise Refused("integers, of which ONNX Runtime truncates each exponential")
    high = node.emit(_max(node, x, axes, True))
    # Where all are -inf, or one is inf, that is the result, and nothing may be subtracted from it.
    finite = node.emit(relax.op.isfinite(high))
    high = node.emit(relax.op.where(finite, high, scalar(0, x)))
    total = node.emit(relax.op.sum(node.emit(relax.op.exp(node.emit(relax.op.subtract(x, high)))), axes, keep))
    high = high if keep else node.emit(relax.op.squeeze(high, axes))
    return relax.op.add(node.emit(relax.op.log(total)), high)


def _mean(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
    return full_precision(node, lambda x: relax.op.mean(x, axes, keep), x)


def _extreme(function: Callable[..., Any], select: Callable[..., Any], worst: float) -> Reduce:
    """Max or min; of bools as bytes. TVM's own start from the largest finite number, which is wrong for infinities."""

    def kernel(x: te.Tensor, axes: list[int], keep: bool) -> te.Tensor:
        reducer = te.comm_reducer(select, lambda dtype: tirx.const(worst, dtype), name="extreme")
        taps = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}
        rest = [axis for axis in range(len(x.shape)) if axis not in taps]
        shape = [1 if axis in taps else dim for axis, dim in enumerate(x.shape) if keep or axis not in taps]

        def element(*index: Any) -> Any:
            own = dict(zip(rest, (index[axis] for axis in rest) if keep else index, strict=True))
            return reducer(x(*(taps.get(a, own.get(a)) for a in range(len(x.shape)))), axis=list(taps.values()))

        return te.compute(shape, element, name="extreme")

    def reduce(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
        if is_float(dtype_of(x)):
            return node.te(kernel, x, axes, keep, primfunc_name_hint=function.__name__)
        if dtype_of(x) != "bool":
            return function(x, axes, keep)
        return cast(node.emit(function(node.emit(cast(x, "uint8")), axes, keep)), "bool")

    return reduce


# comm_reducer counts the arguments of the function it is given, and tirx.max has a third.
_max = _extreme(relax.op.max, lambda a, b: tirx.max(a, b), -math.inf)
_min = _extreme(relax.op.min, lambda a, b: tirx.min(a, b), math.inf)


_REDUCE: dict[str, Reduce] = {
    "ReduceL1": _sum_of(lambda node, x: relax.op.abs(x)),
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _max,
    "ReduceMean": _mean,
    "ReduceMin": _min,
    "ReduceProd": _plain(relax.op.prod),
    "ReduceSum": _plain(relax.op.sum),
    "ReduceSumSquare": _sum_of(_square),
}
_EXACT = {"ReduceMax", "ReduceMin"}
# What these do with no axes to reduce, of a scalar or with `noop_with_empty_axes`: their function of one element.
_ALONE: dict[str, Callable[[Node, Any], Any]] = {
    "ReduceL1": lambda node, x: relax.op.abs(x),
    "ReduceL2": lambda node, x: relax.op.abs(x),
    "ReduceLogSum": lambda node, x: full_precision(node, relax.op.log, x),
    "ReduceSumSquare": _square,
}


@op(*_REDUCE)
def _reduce(node: Node) -> Any:
    x, rank = node.tensor(0), node.rank(0)
    keep = bool(node.attr("keepdims", 1))
    if rank and node.has(1) and not node.is_known(1):
        x, shape = gathered(node, 1, keep=keep)
        return reshaped(node, _reduced(node, x, [1], False), shape)
    axes = node.axes(1)
    if not rank or (not axes and node.attr("noop_with_empty_axes", 0)):
        return _ALONE[node.op](node, x) if node.op in _ALONE else x
    return _reduced(node, x, sorted({axis % rank for axis in axes}) if axes else list(range(rank)), keep)


def _reduced(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
    """The reduction over axes; sums of 16-bit floats are made in float32."""
    dtype = node.dtype(0)
    wide = node.emit(cast(x, "float32")) if is_low_precision(dtype) and node.op not in _EXACT else x
    return node.emit(cast(node.emit(_REDUCE[node.op](node, wide, axes, keep)), dtype))


@op("ArgMax", "ArgMin")
def _arg(node: Node) -> Any:
    """The first of equal elements, or with `select_last_index` the last; NaN is ahead of all numbers, as in numpy."""
    rank = node.rank(0)
    axis, keep = node.attr("axis", 0) % rank, bool(node.attr("keepdims", 1))
    last, largest = bool(node.attr("select_last_index", 0)), node.op == "ArgMax"
    x = node.tensor(0)
    x = node.emit(cast(x, "float32")) if node.dtype(0) == "bfloat16" else x  # TVM builds no reduction of pairs of it
    both = node.te(lambda x: _arg_kernel(x, axis, keep, largest, last), x, primfunc_name_hint="arg")
    return relax.TupleGetItem(both, 0)


def _arg_kernel(x: te.Tensor, axis: int, keep: bool, largest: bool, last: bool) -> list[te.Tensor]:
    def better(a: Any, b: Any) -> Any:
        ahead = a[1] > b[1] if largest else a[1] < b[1]
        earlier = a[0] >= b[0] if last else a[0] <= b[0]
        left = tirx.Or(ahead, tirx.And(a[1] == b[1], earlier))
        if is_float(str(a[1].ty.dtype)):
            left = tirx.Select(
                tirx.isnan(a[1]),
                tirx.Or(earlier, tirx.Not(tirx.isnan(b[1]))),
                tirx.And(left, tirx.Not(tirx.isnan(b[1]))),
            )
        return tirx.Select(left, a[0], b[0]), tirx.Select(left, a[1], b[1])

    def start(index: str, value: str) -> Any:
        # An index that loses every tie, so that a row of infinities still gives one of its own.
        return tirx.const(-1 if last else (1 << 62), index), lowest(value) if largest else highest(value)

    reducer = te.comm_reducer(better, start, name="arg")
    tap = te.reduce_axis((0, x.shape[axis]), name="k")
    shape = [1 if i == axis else dim for i, dim in enumerate(x.shape) if keep or i != axis]

    def element(*index: Any) -> Any:
        before, after = index[:axis], index[axis + 1 :] if keep else index[axis:]
        return reducer((tap, x(*before, tap, *after)), axis=tap)

    return list(te.compute(shape, element, name="arg"))


def lowest(dtype: str) -> Any:
    """Return the value that nothing of this dtype is less than."""
    return tirx.const(-math.inf, dtype) if is_float(dtype) else tirx.min_value(dtype)


def highest(dtype: str) -> Any:
    """Return the value that nothing of this dtype is greater than."""
    return tirx.const(math.inf, dtype) if is_float(dtype) else tirx.max_value(dtype)


@op("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node) -> Any:
    axes = list(range(2, node.rank(0)))
    name = "ReduceMean" if node.op == "GlobalAveragePool" else "ReduceMax"
    x, dtype = node.tensor(0), node.dtype(0)
    wide = node.emit(cast(x, "float32")) if is_low_precision(dtype) and name == "ReduceMean" else x
    return cast(node.emit(_REDUCE[name](node, wide, axes, True)), dtype)


@op("GlobalLpPool")
def _global_lp_pool(node: Node) -> Any:
    return lp_norm(node, node.tensor(0), list(range(2, node.rank(0))), float(node.attr("p", 2)))


def lp_norm(node: Node, x: Any, axes: list[int], order: float) -> Any:
    """Return `(Σ |x|^p)^(1/p)` over axes, which are kept."""
    size = node.emit(relax.op.abs(x))
    if order == 1:
        return node.emit(relax.op.sum(size, axes, keepdims=True))
    if order == 2:
        return node.emit(relax.op.sqrt(node.emit(relax.op.sum(node.emit(_square(node, x)), axes, keepdims=True))))
    total = node.emit(relax.op.sum(node.emit(relax.op.power(size, scalar(order, x))), axes, keepdims=True))
    return node.emit(relax.op.power(total, scalar(1 / order, x)))
