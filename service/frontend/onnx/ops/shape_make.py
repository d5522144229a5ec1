"""Operators that make a tensor from sizes: ConstantOfShape, Range, EyeLike, Trilu, OneHot."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from relaxc.service.codes import CARRIER, FORMATS
from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.codes import of_codes
from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import aligned, is_float, relax_dim, reshaped
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.reading import computed, vector
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
    codes = value.view(CARRIER) if str(value.dtype) in FORMATS else value
    dtype = str(codes.dtype)
    filled = relax.op.full(shape, relax.const(codes.reshape(-1)[0], dtype), dtype)
    return filled if codes is value else of_codes(node, node.emit(filled), str(value.dtype))


@op("Range")
def _range(node: Node) -> Any:
    """`start + i·delta` below `limit`; integers may be symbolic."""
    dtype = node.known_dtype(0)
    if not all(node.is_known(index) for index in range(3)):
        return _computed_range(node, dtype)
    bounds = [node.dims(index, name) for index, name in enumerate(("start", "limit"))] if _whole(node) else []
    if not bounds:
        raise Refused("bounds that are symbolic floats")
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


def _computed_range(node: Node, dtype: str) -> Any:
    """A range whose bounds are computed from data: its length is read as the program runs."""
    key = ("range", *(id(value) if isinstance(value, Known) else value for value in node.inputs))
    bounds = [node.emit(relax.op.reshape(node.tensor(index), [1])) for index in range(3)]

    def length(start: te.Tensor, limit: te.Tensor, delta: te.Tensor) -> list[Any]:
        wide = "float64" if is_float(dtype) else "int64"
        first, last, step = (each[0].astype(wide) for each in (start, limit, delta))
        if wide == "float64":
            count = tirx.ceil((last - first) / step).astype("int64")
        else:
            span = tirx.Select(step > 0, last - first, first - last)
            size = tirx.max(tirx.Select(step > 0, step, -step), tirx.const(1, "int64"))
            count = tirx.floordiv(span + size - 1, size)
        return [tirx.max(count, tirx.const(0, "int64"))]

    if key not in node.scope.read:
        node.scope.read[key] = computed(node, length, *bounds)

    def element(start: te.Tensor, delta: te.Tensor, count: Any) -> te.Tensor:
        return te.compute((count,), lambda i: start[0] + i.astype(dtype) * delta[0], name="range")

    return node.te(element, bounds[0], bounds[2], *node.scope.read[key], primfunc_name_hint="range")


def _whole(node: Node) -> bool:
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
    known = not node.has(1) or node.is_known(1)
    shift = int(node.scalar(1, "k")) if node.has(1) and known else 0
    upper = node.attr("upper", 1)

    def kernel(data: te.Tensor, *given: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            place, at = index[-1] - index[-2], given[0][0] if given else shift
            keep = place >= at if upper else place <= at
            return tirx.Select(keep, data(*index), tirx.const(0, data.dtype))

        return te.compute(data.shape, element, name="trilu")

    return node.te(kernel, x, *([] if known else [vector(node, 1)[0]]))


def _from_the_end(indices: te.Tensor, depth: Any) -> te.Tensor:
    def element(*at: Any) -> Any:
        place = indices(*at)
        return tirx.Select(place < 0, place + depth, place)

    return te.compute(indices.shape, element, name="from_the_end")


def _places(own: list[Any]) -> te.Tensor:
    return te.compute((own[0],), lambda i: i.astype("int64"), name="places")


@op("OneHot")
def _one_hot(node: Node) -> Any:
    """`values = [off, on]`; an index outside -depth..depth-1 gives a row of `off`."""
    (depth,) = node.dims(1, "depth") if not node.is_known(1) else (int(node.scalar(1, "depth")),)
    rank = node.rank(0) + 1
    axis = node.attr("axis", -1) % rank
    indices = node.emit(relax.op.astype(node.tensor(0), "int64"))
    indices = node.te(_from_the_end, indices, relax_dim(depth), primfunc_name_hint="from_the_end")
    shape = node.shape(0)
    indices = reshaped(node, indices, [*shape[:axis], 1, *shape[axis:]])
    places = node.te_of_sizes(_places, [depth], "places")
    places = reshaped(node, places, [depth if i == axis else 1 for i in range(rank)])
    values = node.tensor(2)
    off, on = (
        node.emit(relax.op.reshape(node.emit(relax.op.strided_slice(values, [0], [i], [i + 1])), ())) for i in (0, 1)
    )
    return relax.op.where(node.emit(relax.op.equal(*aligned(node, indices, places))), on, off)
