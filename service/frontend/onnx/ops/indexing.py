"""Gathers and scatters. A negative index counts from the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.dims import same
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import cast, relax_dim, reshaped, scalar
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.values import Known, known_ints
from relaxc.service.frontend.reach import reach

__all__ = ["from_start"]


def _size_tensor(dim: Any, node: Node, dtype: str) -> Any:
    return node.materialize(known_ints([dim], node.scope, dtype, ()))


def from_start(node: Node, index: int, size: Any) -> Any:
    """Return indices along an axis of `size`, counted from its start; done at import when they are known."""
    value = node.inputs[index]
    if isinstance(value, Known) and not value.symbolic:
        _inside_all(node, value.array, size)
        if (value.array >= 0).all():
            return node.tensor(index)
        places = [place if place >= 0 else place + size for place in value.array.reshape(-1).tolist()]
        return node.materialize(known_ints(places, node.scope, value.dtype, value.array.shape))
    x = node.tensor(index)
    if isinstance(value, Known):
        for place in value.array.reshape(-1).tolist():
            _inside(node, place, place, size)
    else:
        found = reach(x, node.builder.lookup_binding, node.scope.ranges)
        if found is not None:
            _inside(node, *found, size)
    if dtype_of(x).startswith("uint"):
        return x
    wrapped = node.emit(relax.op.add(x, _size_tensor(size, node, dtype_of(x))))
    return node.emit(relax.op.where(node.emit(relax.op.less(x, scalar(0, x))), wrapped, x))


@op("Gather")
def _gather(node: Node) -> Any:
    """An index that is outside, which ONNX forbids, reads the nearest element instead of foreign memory."""
    axis = node.attr("axis", 0) % node.rank(0)
    return relax.op.take(node.tensor(0), from_start(node, 1, node.shape(0)[axis]), axis, mode="clip")


def _inside_all(node: Node, indices: Any, size: Any) -> None:
    """Require that known indices are inside of an axis of `size`."""
    if indices.size:
        _inside(node, int(indices.min()), int(indices.max()), size)


def _inside(node: Node, low: Any, high: Any, size: Any) -> None:
    """Require that indices from `low` to `high`, negative ones from the end, are inside of an axis of `size`.

    Not in a branch that a call may leave for its sizes: what is read there is the nearest element, and is left.
    """
    if not node.walk.may_be_left:
        least, most, axis = (onnx_dims.told(onnx_dims.simplify(each, node.scope)) for each in (low, high, size))
        told = f"has indices of {least} to {most} for an axis of {axis}"
        node.require(size, ">=", high + 1, told)
        node.require(size, ">=", -low, told)


@op("GatherElements")
def _gather_elements(node: Node) -> Any:
    axis = node.attr("axis", 0) % node.rank(0)
    indices = node.emit(cast(from_start(node, 1, node.shape(0)[axis]), "int64"))
    return relax.op.gather_elements(node.tensor(0), indices, axis)


def _coordinates(node: Node, index: int, axes: list[Any]) -> Any:
    """The last axis of the indices holds one place for each of `axes`."""
    if node.is_known(index) and not node.inputs[index].symbolic:
        for place, size in enumerate(axes):
            _inside_all(node, node.inputs[index].array[..., place], size)
    x = node.emit(cast(node.tensor(index), "int64"))
    sizes = node.materialize(node.known(axes))
    wrapped = node.emit(relax.op.add(x, sizes))
    return node.emit(relax.op.where(node.emit(relax.op.less(x, scalar(0, x))), wrapped, x))


def _depth(node: Node, index: int) -> int:
    depth = node.shape(index)[-1]
    if not isinstance(depth, int):
        raise Refused("indices whose last axis has a symbolic size")
    return depth


@op("GatherND")
def _gather_nd(node: Node) -> Any:
    batch = node.attr("batch_dims", 0)
    depth = _depth(node, 1)
    indices = _coordinates(node, 1, node.shape(0)[batch : batch + depth])
    return relax.op.gather_nd(node.tensor(0), indices, batch)


_REDUCTION = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


@op("Scatter", "ScatterElements")
def _scatter_elements(node: Node) -> Any:
    axis = node.attr("axis", 0) % node.rank(0)
    indices = node.emit(cast(from_start(node, 1, node.shape(0)[axis]), "int64"))
    return _scattered(node, relax.op.scatter_elements, indices, axis)


@op("ScatterND")
def _scatter_nd(node: Node) -> Any:
    indices = _coordinates(node, 1, node.shape(0)[: _depth(node, 1)])
    return _scattered(node, relax.op.scatter_nd, indices)


def _scattered(node: Node, scatter: Callable[..., Any], indices: Any, *axis: int) -> Any:
    """Bools, as bytes, are added by or, and multiplied by and, as in numpy and ONNX Runtime."""
    name, x, updates = node.attr("reduction", "none"), node.tensor(0), node.tensor(2)
    if name not in _REDUCTION:
        raise Refused(f"reduction={name}")
    reduction = _REDUCTION[name]
    if node.dtype(0) != "bool" or reduction == "update":
        return scatter(x, indices, updates, *axis, reduction)
    x, updates = (node.emit(cast(each, "uint8")) for each in (x, updates))
    reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
    return cast(node.emit(scatter(x, indices, updates, *axis, reduction)), "bool")


@op("NonZero")
def _nonzero(node: Node) -> Any:
    """The places, an axis a row: of one tensor they are as many each time. A number is a vector of one, as ONNX Runtime
    and numpy take it.
    """
    x = node.tensor(0)
    if x not in node.scope.places:
        count = node.scope.fresh("nonzero")
        kind = relax.TensorType([max(node.rank(0), 1), count], "int64")
        node.scope.places[x] = node.builder.match_cast(node.emit(relax.op.nonzero(x)), kind)
    return node.scope.places[x]


@op("Compress")
def _compress(node: Node) -> Any:
    """The slices whose condition holds; how many is known at run time."""
    x, axis = node.tensor(0), node.attr("axis")
    if axis is None:
        x, axis = node.emit(relax.op.flatten(x)), 0
    axis %= len(node.shape_of(x))
    count = node.scope.fresh("compress")
    places = node.emit(relax.op.nonzero(_within(node, node.tensor(1), node.shape_of(x)[axis])))
    places = node.builder.match_cast(places, relax.TensorType([1, count], "int64"))
    return relax.op.take(x, reshaped(node, places, [relax_dim(count)]), axis, mode="clip")


def _within(node: Node, condition: Any, size: Any) -> Any:
    """The condition, false past the end of its axis: what is longer there counts for nothing."""
    if same(node.shape_of(condition)[0], size, node.scope):
        return condition

    def kernel(given: te.Tensor, size: Any) -> te.Tensor:
        return te.compute(given.shape, lambda i: tirx.And(given(i), i.astype("int64") < size), name="within")

    return node.te(kernel, condition, size, primfunc_name_hint="within")


@op("TensorScatter")
def _tensor_scatter(node: Node) -> Any:
    """The cache, with the update's rows from a place of each batch row on, which `circular` goes on with at 0."""
    axis, circular = node.attr("axis", -2) % node.rank(0), node.attr("mode", "linear") == "circular"
    given = [node.tensor(2)] if node.has(2) else []

    def kernel(cache: te.Tensor, update: te.Tensor, *starts: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            row = at[axis] - (starts[0](at[0]) if starts else 0)
            row = tirx.floormod(row, cache.shape[axis]) if circular else row
            inside = tirx.And(row >= 0, row < update.shape[axis])
            return tirx.if_then_else(inside, update(*at[:axis], row, *at[axis + 1 :]), cache(*at))

        return te.compute(cache.shape, element, name="scatter")

    return node.te(kernel, node.tensor(0), node.tensor(1), *given, primfunc_name_hint="scatter")
