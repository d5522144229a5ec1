"""Reductions over axes, ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, topi

from service.frontend.onnx_node import Node, Refused, dtype_of
from service.frontend.onnx_ops.common import cast, is_integer, is_low_precision, scalar
from service.frontend.onnx_ops.registry import op

Reduce = Callable[[Node, Any, list[int], bool], Any]


def _plain(function: Callable[..., Any]) -> Reduce:
    return lambda node, x, axes, keep: function(x, axes, keep)


def _sum_of(function: Callable[[Node, Any], Any]) -> Reduce:
    return lambda node, x, axes, keep: relax.op.sum(node.emit(function(node, x)), axes, keep)


def _square(node: Node, x: Any) -> Any:
    return relax.op.multiply(x, x)


def _l2(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
    total = node.emit(relax.op.sum(node.emit(_square(node, x)), axes, keep))
    if not is_integer(dtype_of(total)):
        return relax.op.sqrt(total)
    return cast(node.emit(relax.op.sqrt(node.emit(cast(total, "float64")))), dtype_of(x))


def _log_sum(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
    return relax.op.log(node.emit(relax.op.sum(x, axes, keep)))


def _log_sum_exp(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
    """`max + log Σ exp(x - max)`, which does not overflow."""
    high = node.emit(relax.op.max(x, axes, keepdims=True))
    total = node.emit(relax.op.sum(node.emit(relax.op.exp(node.emit(relax.op.subtract(x, high)))), axes, keep))
    high = high if keep else node.emit(relax.op.squeeze(high, axes))
    return relax.op.add(node.emit(relax.op.log(total)), high)


def _mean(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
    if not is_integer(dtype_of(x)):
        return relax.op.mean(x, axes, keep)
    wide = node.emit(relax.op.mean(node.emit(cast(x, "float64")), axes, keep))
    return cast(wide, dtype_of(x))


def _through_bytes(function: Callable[..., Any]) -> Reduce:
    """Max and min of bools, as bytes."""

    def reduce(node: Node, x: Any, axes: list[int], keep: bool) -> Any:
        if dtype_of(x) != "bool":
            return function(x, axes, keep)
        return cast(node.emit(function(node.emit(cast(x, "uint8")), axes, keep)), "bool")

    return reduce


_REDUCE: dict[str, Reduce] = {
    "ReduceL1": _sum_of(lambda node, x: relax.op.abs(x)),
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _through_bytes(relax.op.max),
    "ReduceMean": _mean,
    "ReduceMin": _through_bytes(relax.op.min),
    "ReduceProd": _plain(relax.op.prod),
    "ReduceSum": _plain(relax.op.sum),
    "ReduceSumSquare": _sum_of(_square),
}
_EXACT = {"ReduceMax", "ReduceMin"}
# What these do with no axes to reduce, when `noop_with_empty_axes` is set: their function of one element.
_ALONE: dict[str, Callable[[Node, Any], Any]] = {
    "ReduceL1": lambda node, x: relax.op.abs(x),
    "ReduceL2": lambda node, x: relax.op.abs(x),
    "ReduceLogSum": lambda node, x: relax.op.log(x),
    "ReduceSumSquare": _square,
}


@op(*_REDUCE)
def _reduce(node: Node) -> Any:
    x, rank, dtype = node.tensor(0), node.rank(0), node.dtype(0)
    if node.has(1) and not node.is_known(1):
        raise Refused("axes that are computed from the inputs' values")
    axes = node.axes(1)
    if axes is None and node.attr("noop_with_empty_axes", 0):
        return _ALONE[node.op](node, x) if node.op in _ALONE else x
    places = sorted({axis % rank for axis in axes}) if axes is not None else list(range(rank))
    if not places:
        return x
    keep = bool(node.attr("keepdims", 1))
    wide = node.emit(cast(x, "float32")) if is_low_precision(dtype) and node.op not in _EXACT else x
    return cast(node.emit(_REDUCE[node.op](node, wide, places, keep)), dtype)


@op("ArgMax", "ArgMin")
def _arg(node: Node) -> Any:
    """The first of equal elements, or with `select_last_index` the last."""
    x, shape = node.tensor(0), node.shape(0)
    axis = node.attr("axis", 0) % len(shape)
    function = topi.argmax if node.op == "ArgMax" else topi.argmin
    keep, last = bool(node.attr("keepdims", 1)), bool(node.attr("select_last_index", 0))
    found = node.te(lambda data: function(data, axis, keepdims=keep, select_last_index=last), x)
    return cast(found, "int64")


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
    """`(Σ |x|^p)^(1/p)` over axes, which are kept."""
    size = node.emit(relax.op.abs(x))
    if order == 1:
        return node.emit(relax.op.sum(size, axes, keepdims=True))
    if order == 2:
        return node.emit(relax.op.sqrt(node.emit(relax.op.sum(node.emit(_square(node, x)), axes, keepdims=True))))
    total = node.emit(relax.op.sum(node.emit(relax.op.power(size, scalar(order, x))), axes, keepdims=True))
    return node.emit(relax.op.power(total, scalar(1 / order, x)))
