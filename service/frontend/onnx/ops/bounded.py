"""Inputs that name places in a tensor, bounded before TVM's kernels, which read wherever they point.

A batch index is treated as an index of Gather: from the end if negative, then clipped. Coordinates that are not finite,
or beyond what an int32 and the number of samples stand, go to the nearest bound; a NaN of a region to the lower one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import cast, is_low_precision, scalar

__all__ = ["BOUNDED"]

_REACH = 1 << 14
"""Pixels of the feature map: a region from -reach to reach has less than 2^31 samples, which TVM counts in int32."""
_GRID = float(1 << 16)
"""Half images: a grid's coordinate times a size of 2^15 fits an int32."""


def _wide(node: Node, tensor: Any) -> Any:
    """In float32 what has 16 bits: a batch index, or a pixel's place, needs more digits."""
    return node.emit(cast(tensor, "float32")) if is_low_precision(dtype_of(tensor)) else tensor


def _clamped(value: Any, bound: float) -> Any:
    bound_of = [tirx.const(sign * bound, str(value.ty.dtype)) for sign in (-1, 1)]
    return tirx.Select(value >= bound_of[1], bound_of[1], tirx.Select(value > bound_of[0], value, bound_of[0]))


def _batch(value: Any, size: Any) -> Any:
    place = value.astype("int64")
    return tirx.max(tirx.min(tirx.Select(place < 0, place + size, place), size - 1), tirx.const(0, "int64"))


def _reach(node: Node) -> float:
    """The bound of a region's coordinates, which are multiplied by `spatial_scale`."""
    sizes = [size for size in node.shape(0)[2:] if isinstance(size, int)]
    return float(max([_REACH, *sizes])) / _scale(node)


def _scale(node: Node) -> float:
    scale = float(node.attr("spatial_scale", 1.0))
    if scale <= 0:
        raise Refused("a spatial_scale of 0 or less")
    return scale


def _roi_align(node: Node, tensors: list[Any]) -> list[Any]:
    image, regions, places = tensors
    have, want = node.shape_of(places)[0], node.shape_of(regions)[0]
    node.require(have, "==", want, "has {right} regions and {left} batch indices")
    aligned = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    aligned = node.attr("coordinate_transformation_mode", aligned) == "half_pixel"
    adaptive = aligned and node.attr("sampling_ratio", 0) <= 0
    reach, unit = _reach(node), 1 / _scale(node)
    shift = 0.5 - 0.5 * unit if aligned else 0.0  # TVM takes the half pixel off before it scales, ONNX after

    def coordinates(x: te.Tensor) -> te.Tensor:
        def element(row: Any, column: Any) -> Any:
            value = _clamped(x(row, column), reach)
            return (_filled(x, row, column, reach, unit) if adaptive else value) + tirx.const(shift, x.dtype)

        return te.compute(x.shape, element, name="regions")

    def batches(x: te.Tensor, size: Any) -> te.Tensor:
        return te.compute(x.shape, lambda *at: _batch(x(*at), size), name="batches")

    regions = node.te(coordinates, _wide(node, regions), primfunc_name_hint="regions")
    return [_wide(node, image), regions, node.te(batches, places, node.shape(0)[0], primfunc_name_hint="batches")]


def _filled(x: te.Tensor, row: Any, column: Any, reach: float, unit: float) -> Any:
    """The coordinate of a region that has a sample, as TVM sets no output of one that has none.

    A region of no area is moved outside of the image, where the result is 0; a side that rounding may bring to 0 is
    lengthened by a millionth. `unit` is a pixel of the feature map.
    """

    def number(value: float) -> Any:
        return tirx.const(value, x.dtype)

    def side(axis: Any) -> tuple[Any, Any]:
        return _clamped(x(row, axis), reach), _clamped(x(row, axis + 2), reach)

    low, high = side(tirx.floormod(column, 2))
    size = tirx.max(tirx.max(tirx.abs(low), tirx.abs(high)), number(unit))
    own = tirx.Select(column < 2, low, tirx.max(high, low + size * number(2.0**-20)))
    empty = tirx.Or(*(end <= start for start, end in (side(0), side(1))))
    return tirx.Select(empty, tirx.Select(column < 2, number(-reach), number(unit - reach)), own)


def _max_roi_pool(node: Node, tensors: list[Any]) -> list[Any]:
    image, regions = tensors
    reach = _reach(node)
    size = node.shape(0)[0]

    def bounded(x: te.Tensor, size: Any) -> te.Tensor:
        def element(row: Any, column: Any) -> Any:
            value = x(row, column)
            batch = _batch(_clamped(value, float(1 << 24)), size).astype(x.dtype)
            return tirx.Select(column == 0, batch, _clamped(value, reach))

        return te.compute(x.shape, element, name="regions")

    regions = node.te(bounded, _wide(node, regions), size, primfunc_name_hint="regions")
    return [_wide(node, image), regions]


def _grid_sample(node: Node, tensors: list[Any]) -> list[Any]:
    """A NaN stays: TVM's kernel asks of each place whether it is inside, and gives NaN. Integers are interpolated as
    float64, which has all of most.
    """
    kinds = {dtype_of(tensor) for tensor in tensors}
    wide = "float32" if all(kind == "float32" or is_low_precision(kind) for kind in kinds) else "float64"
    image, grid = (node.emit(cast(tensor, wide)) for tensor in tensors)
    have, want = node.shape_of(grid)[0], node.shape_of(image)[0]
    node.require(have, "==", want, "has {right} images and grids for {left}")
    low = node.emit(relax.op.maximum(grid, scalar(-_GRID, grid)))
    return [image, node.emit(relax.op.minimum(low, scalar(_GRID, low)))]


BOUNDED: dict[str, Callable[[Node, list[Any]], list[Any]]] = {
    "GridSample": _grid_sample,
    "MaxRoiPool": _max_roi_pool,
    "RoiAlign": _roi_align,
}
"""Operator → its inputs, bounded, from its node and its inputs."""
