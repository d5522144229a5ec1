"""Resize along an axis whose sizes are known at a call: places and weights are computed where they are used.

`Y[…, o, …] = Σ_t w(t - p(o)) · X[…, ⌊p(o)⌋ + t, …]`, with `p` in fp32 as `resize_weights` has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import relax_dim
from relaxc.service.frontend.onnx.ops.resize_weights import Plan, Read
from relaxc.service.frontend.onnx.reading import computed

__all__ = ["computed_sizes", "kept_ratio", "resized"]


class _Numbers:
    """Scales and regions of plans as what a kernel is given and reads them from."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        each = [number for plan in plans for number in (plan.scale, *plan.region)]
        self.tensors = list({id(n.tensor): n.tensor for n in each if isinstance(n, Read)}.values())

    def of(self, plan: Plan, given: Sequence[Any]) -> list[Any]:
        """Return the scale, start and end of an axis, None for a scale that the sizes have."""
        return [self._one(number, given) for number in (plan.scale, *plan.region)]

    def _one(self, number: Any, given: Sequence[Any]) -> Any:
        if isinstance(number, Read):
            place = next(at for at, tensor in enumerate(self.tensors) if tensor is number.tensor)
            return given[place][number.place]
        return None if number is None else tirx.const(number, "float32")


def computed_sizes(node: Node, plans: list[Plan]) -> list[Any]:
    """Return what axes' sizes are times their scales, and parts of a region, in fp32 and rounded down."""
    numbers, count = _Numbers(plans), len(plans)

    def sizes(*given: Any) -> list[Any]:
        outs = []
        for plan, size in zip(plans, given[-count:], strict=True):
            scale, start, end = numbers.of(plan, given)
            outs.append(tirx.Cast("int64", tirx.floor(tirx.Cast("float32", size) * (scale * (end - start)))))
        return outs

    return computed(node, sizes, *numbers.tensors, *(relax_dim(plan.size) for plan in plans))


def kept_ratio(node: Node, plans: list[Plan]) -> list[Plan]:
    """Return the axes grown by one scale: the largest, or the least, of those by which each has the size asked for."""
    choose = tirx.max if node.attr("keep_aspect_ratio_policy") == "not_smaller" else tirx.min

    def scale(*sizes: Any) -> te.Tensor:
        each = [tirx.Cast("float32", out) / tirx.Cast("float32", size) for size, out in _pairs(sizes)]
        found = each[0]
        for other in each[1:]:
            found = choose(found, other)
        return te.compute((1,), lambda _: found, name="scale")

    def _pairs(sizes: Sequence[Any]) -> Any:
        return zip(sizes[: len(plans)], sizes[len(plans) :], strict=True)

    given = [relax_dim(size) for size in (*(plan.size for plan in plans), *(plan.out for plan in plans))]
    found = Read(node.te(scale, *given, primfunc_name_hint="scale"), 0)

    def sizes(scale: te.Tensor, *sizes: Any) -> list[Any]:
        return [tirx.Cast("int64", tirx.floor(scale[0] * tirx.Cast("float32", size) + 0.5)) for size in sizes]

    outs = computed(node, sizes, found.tensor, *given[: len(plans)])
    return [Plan(plan.axis, plan.size, out, found, plan.region) for plan, out in zip(plans, outs, strict=True)]


def resized(node: Node, x: Any, plan: Plan, attributes: dict[str, Any]) -> Any:
    """Return a tensor resized along an axis; a plan without a scale has that of its sizes. Raise Refused for modes that
    there are not.
    """
    mode = attributes.get("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear", "trilinear", "cubic"):
        raise Refused(f"mode={mode}")
    transform = attributes.get("coordinate_transformation_mode", "half_pixel")
    if transform not in (*_POSITIONS, "tf_crop_and_resize"):
        raise Refused(f"coordinate_transformation_mode={transform}")
    scale = plan.scale if isinstance(plan.scale, float) else 0.5
    if transform == "align_corners" and plan.scale is not None and not scale.is_integer():
        raise Refused("align_corners with a scale that gives no whole size")
    place = _Place(plan, transform)
    if mode == "nearest":
        made = _nearest(node, x, place, attributes.get("nearest_mode", "round_prefer_floor"))
    elif attributes.get("exclude_outside", 0) or attributes.get("antialias", 0):
        made = _summed(node, x, place, attributes)
    else:
        made = _interpolated(node, x, place, attributes)
    if transform != "tf_crop_and_resize":
        return made
    return _extrapolated(node, made, place, attributes.get("extrapolation_value", 0.0))


class _Place:
    """Where in an axis an output element comes from."""

    def __init__(self, plan: Plan, transform: str) -> None:
        self.plan, self.axis, self.transform = plan, plan.axis, transform
        self._numbers = _Numbers([plan])
        self.given = [relax_dim(plan.size), relax_dim(plan.out), *self._numbers.tensors]
        """What a kernel is given behind its tensors."""

    def scale(self, given: Sequence[Any]) -> Any:
        """Return the expression of the scale."""
        count, target = (tirx.Cast("float32", each) for each in given[:2])
        scale = self._numbers.of(self.plan, given[2:])[0]
        return target / count if scale is None else scale

    def of(self, out: Any, given: Sequence[Any]) -> Any:
        """Return the expression of the place that an element comes from, in fp32."""
        count, target, place = (tirx.Cast("float32", each) for each in (*given[:2], out))
        _, start, end = self._numbers.of(self.plan, given[2:])
        if self.transform == "tf_crop_and_resize":
            return _crop(place, count, target, start, end)
        return _POSITIONS[self.transform](place, count, target, self.scale(given))

    def element(self, data: te.Tensor, index: tuple[Any, ...], place: Any, given: Sequence[Any]) -> Any:
        """Return what a tensor has at a place of the axis, or at the end that is nearest to it."""
        inside = tirx.max(tirx.min(place, given[0] - 1), tirx.const(0, "int64"))
        return data(*index[: self.axis], inside, *index[self.axis + 1 :])

    def shape(self, data: te.Tensor, out: Any) -> list[Any]:
        """Return the shape of the result."""
        return [*data.shape[: self.axis], out, *data.shape[self.axis + 1 :]]


def _nearest(node: Node, x: Any, place: _Place, rounding: str) -> Any:
    def kernel(data: te.Tensor, *given: Any) -> te.Tensor:
        def element(*index: Any) -> Any:
            found = place.of(index[place.axis], given)
            if rounding == "by_scale":
                near = tirx.Select(place.scale(given) < 1, tirx.ceil(found), tirx.floor(found))
            else:
                near = _ROUND[rounding](found)
            return place.element(data, index, tirx.Cast("int64", near), given)

        return te.compute(place.shape(data, given[1]), element, name="resize")

    return node.te(kernel, x, *place.given, primfunc_name_hint="resize")


def _interpolated(node: Node, x: Any, place: _Place, attributes: dict[str, Any]) -> Any:
    def kernel(data: te.Tensor, *given: Any) -> te.Tensor:
        def element(*index: Any) -> Any:
            found = place.of(index[place.axis], given)
            first = tirx.floor(found)
            rest = (found - first).astype(data.dtype)
            low = tirx.Cast("int64", first)
            if attributes["mode"] != "cubic":
                ends = [place.element(data, index, low + step, given) for step in (0, 1)]
                return ends[0] * (1 - rest) + ends[1] * rest
            slope = tirx.const(attributes.get("cubic_coeff_a", -0.75), data.dtype)
            weights = [_far(1 + rest, slope), _near(rest, slope), _near(1 - rest, slope), _far(2 - rest, slope)]
            parts = [
                place.element(data, index, low + step, given) * weight
                for step, weight in zip((-1, 0, 1, 2), weights, strict=True)
            ]
            return parts[0] + parts[1] + parts[2] + parts[3]

        return te.compute(place.shape(data, given[1]), element, name="resize")

    return node.te(kernel, x, *place.given, primfunc_name_hint="resize")


def _summed(node: Node, x: Any, place: _Place, attributes: dict[str, Any]) -> Any:
    """By weights of a sum of 1: of a kernel that is as wide as the scale is small, of what is inside, or of both."""
    dtype, half = dtype_of(x), 2 if attributes["mode"] == "cubic" else 1
    antialias, exclude = attributes.get("antialias", 0), attributes.get("exclude_outside", 0)
    taps = _taps(node, place, half) if antialias else 2 * half
    slope = tirx.const(attributes.get("cubic_coeff_a", -0.75), dtype)

    def start(o: Any, given: Sequence[Any]) -> tuple[Any, Any, Any]:
        found, shrunk = place.of(o, given), tirx.min(place.scale(given), tirx.const(1, "float32"))
        shrunk = shrunk if antialias else tirx.const(1, "float32")
        return found, shrunk, tirx.Cast("int64", tirx.floor(found - half / shrunk)) + 1

    def weights(taps: Any, *given: Any) -> list[te.Tensor]:
        def weight(o: Any, t: Any) -> Any:
            found, shrunk, first = start(o, given)
            far = (tirx.abs(tirx.Cast("float32", first + t) - found) * shrunk).astype(dtype)
            zero = tirx.const(0, dtype)
            if half == 2:
                own = tirx.Select(far <= 1, _near(far, slope), tirx.Select(far < 2, _far(far, slope), zero))
            else:
                own = tirx.max(1 - far, zero)
            inside = tirx.And(first + t >= 0, first + t < given[0])
            return tirx.Select(inside, own, zero) if exclude else own

        share = te.compute((given[1], taps), weight, name="share")
        tap = te.reduce_axis((0, taps), name="tap")
        return [share, te.compute((given[1],), lambda o: te.sum(share[o, tap], axis=tap), name="total")]

    made = node.te(weights, relax_dim(taps), *place.given, primfunc_name_hint="resize_weights")
    share, total = (node.emit(relax.TupleGetItem(made, at)) for at in (0, 1))

    def kernel(data: te.Tensor, share: te.Tensor, total: te.Tensor, *given: Any) -> te.Tensor:
        tap, axis = te.reduce_axis((0, share.shape[1]), name="tap"), place.axis

        def element(*index: Any) -> Any:
            first = start(index[axis], given)[2]
            return te.sum(share[index[axis], tap] * place.element(data, index, first + tap, given), axis=tap)

        sums = te.compute(place.shape(data, given[1]), element, name="resize")
        return te.compute(sums.shape, lambda *index: sums(*index) / total[index[axis]], name="mean")

    return node.te(kernel, x, share, total, *place.given, primfunc_name_hint="resize")


def _taps(node: Node, place: _Place, half: int) -> Any:
    """How many elements of an axis a result takes at most."""
    if isinstance(place.plan.scale, float):
        return math.ceil(2 * half / min(place.plan.scale, 1.0)) + 1
    size, out = place.given[:2]
    if place.plan.scale is None:
        one = relax_dim(1)
        return onnx_dims.simplify((2 * half * tirx.max(size, out)) // tirx.max(out, one) + 2, node.scope)

    def count(*given: Any) -> list[Any]:
        wide = 2 * half / tirx.min(place.scale(given), tirx.const(1, "float32"))
        return [tirx.Cast("int64", tirx.ceil(wide)) + 1]

    return computed(node, count, *place.given)[0]


def _extrapolated(node: Node, x: Any, place: _Place, filler: float) -> Any:
    def kernel(data: te.Tensor, *given: Any) -> te.Tensor:
        def element(*index: Any) -> Any:
            found, last = place.of(index[place.axis], given), tirx.Cast("float32", given[0] - 1)
            outside = tirx.Or(found < 0, found > last)
            return tirx.Select(outside, tirx.const(filler, data.dtype), data(*index))

        return te.compute(data.shape, element, name="extrapolate")

    return node.te(kernel, x, *place.given, primfunc_name_hint="extrapolate")


def _crop(place: Any, size: Any, out: Any, start: Any, end: Any) -> Any:
    last, one = size - 1, tirx.const(1, "float32")
    many = start * last + place * ((end - start) * last) / tirx.max(out - 1, one)
    return tirx.Select(out > 1, many, (start + end) * last * tirx.const(0.5, "float32"))


def _half(place: Any, scale: Any) -> Any:
    return (place + 0.5) / scale - 0.5


def _corners(place: Any, size: Any, out: Any, scale: Any) -> Any:
    return tirx.Select(out > 1, place * (size - 1) / tirx.max(out - 1, tirx.const(1, "float32")), place * 0)


_POSITIONS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "half_pixel": lambda place, size, out, scale: _half(place, scale),
    "half_pixel_symmetric": lambda place, size, out, scale: size / 2 * (1 - out / (scale * size)) + _half(place, scale),
    "pytorch_half_pixel": lambda place, size, out, scale: tirx.Select(out > 1, _half(place, scale), place * 0),
    "align_corners": _corners,
    "asymmetric": lambda place, size, out, scale: place / scale,
    "tf_half_pixel_for_nn": lambda place, size, out, scale: (place + 0.5) / scale,
}
"""The place in the input that an output element comes from."""

_ROUND: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: tirx.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: tirx.floor(x + 0.5),
    "floor": tirx.floor,
    "ceil": tirx.ceil,
}


def _near(d: Any, a: Any) -> Any:
    """Keys' kernel (1981), with `a` the slope at distance 1, of distances up to 1."""
    return ((a + 2) * d - (a + 3)) * d * d + 1


def _far(d: Any, a: Any) -> Any:
    """The same from 1 to 2."""
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
