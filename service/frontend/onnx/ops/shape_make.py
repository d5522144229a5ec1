"""Operators that make a tensor from sizes: ConstantOfShape, Range, EyeLike, Trilu, OneHot."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import aligned, relax_dim, reshaped, scalar
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.values import Known
from relaxc.service.frontend.reach import of_range


@op("Constant")
def _constant(node: Node) -> Any:
    import numpy as np

    if node.attr("value") is not None:
        array = node.attr("value")
    elif node.attr("value_int") is not None or node.attr("value_ints") is not None:
        array = np.array(node.attr("value_int", node.attr("value_ints")), "int64")
    elif node.attr("value_float") is not None or node.attr("value_floats") is not None:
        array = np.array(node.attr("value_float", node.attr("value_floats")), "float32")
    else:
        raise Refused("a constant that is a string or sparse")
    return Known(array, str(array.dtype))


@op("ConstantOfShape")
def _constant_of_shape(node: Node) -> Any:
    import numpy as np

    value = node.attr("value", np.zeros(1, "float32"))
    shape = relax.ShapeExpr([relax_dim(dim) for dim in node.dims(0, "the shape")])
    return relax.op.full(shape, relax.const(value.reshape(-1)[0], str(value.dtype)), str(value.dtype))


@op("Range")
def _range(node: Node) -> Any:
    """`start + i·delta` below `limit`; integers may be symbolic."""
    dtype = node.known_dtype(0)
    bounds = [node.dims(index, name) for index, name in enumerate(("start", "limit"))] if _whole(node) else []
    if not bounds:
        raise Refused("bounds that are computed from the inputs' values, or symbolic floats")
    (start,), (limit,) = bounds
    delta = int(node.scalar(2, "delta"))
    if delta == 0:
        raise Refused("delta=0")
    span = limit - start if delta > 0 else start - limit
    length = onnx_dims.simplify((span + abs(delta) - 1) // abs(delta), node.scope)
    if not isinstance(length, int) and not node.scope.analyzer.can_prove(length >= 0):
        length = tirx.max(length, tirx.const(0, "int64"))

    def kernel(own: list[Any]) -> te.Tensor:
        return te.compute((own[1],), lambda i: (own[0] + i * delta).astype(dtype), name="range")

    made = node.te_of_sizes(kernel, [start, length], "range")
    node.scope.ranges[made] = of_range(start, length, delta)
    return made


def _whole(node: Node) -> bool:
    if not all(node.is_known(index) for index in range(3)):
        return False
    return node.known_dtype(0).startswith("int") or (not node.inputs[0].symbolic and _all_integers(node))


def _all_integers(node: Node) -> bool:
    return all(v.symbolic or bool((v.array == v.array.astype("int64")).all()) for v in node.inputs)


@op("EyeLike")
def _eye_like(node: Node) -> Any:
    dtype = node.attr_dtype("dtype") if node.attr("dtype") is not None else node.dtype(0)
    shift = node.attr("k", 0)
    x = node.tensor(0)

    def kernel(like: te.Tensor) -> te.Tensor:
        one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
        return te.compute(like.shape, lambda i, j: tirx.Select(j - i == shift, one, zero), name="eye")

    return node.te(kernel, x)


@op("Trilu")
def _trilu(node: Node) -> Any:
    """The upper triangle keeps `column - row ≥ k`, the lower one `≤ k`."""
    x = node.tensor(0)
    shift = int(node.scalar(1, "k")) if node.has(1) else 0
    upper = node.attr("upper", 1)

    def kernel(data: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            place = index[-1] - index[-2]
            keep = place >= shift if upper else place <= shift
            return tirx.Select(keep, data(*index), tirx.const(0, data.dtype))

        return te.compute(data.shape, element, name="trilu")

    return node.te(kernel, x)


@op("OneHot")
def _one_hot(node: Node) -> Any:
    """`values = [off, on]`; an index outside -depth..depth-1 gives a row of `off`."""
    depth = int(node.scalar(1, "depth"))
    rank = node.rank(0) + 1
    axis = node.attr("axis", -1) % rank
    indices = node.emit(relax.op.astype(node.tensor(0), "int64"))
    negative = node.emit(relax.op.less(indices, scalar(0, indices)))
    indices = node.emit(relax.op.where(negative, node.emit(relax.op.add(indices, scalar(depth, indices))), indices))
    shape = node.shape(0)
    indices = reshaped(node, indices, [*shape[:axis], 1, *shape[axis:]])
    places = relax.const(list(range(depth)), "int64")
    places = reshaped(node, places, [depth if i == axis else 1 for i in range(rank)])
    values = node.tensor(2)
    off, on = (
        node.emit(relax.op.reshape(node.emit(relax.op.strided_slice(values, [0], [i], [i + 1])), ())) for i in (0, 1)
    )
    return relax.op.where(node.emit(relax.op.equal(*aligned(node, indices, places))), on, off)
