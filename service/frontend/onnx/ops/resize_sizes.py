"""Resize along an axis whose sizes are known at a call: places and weights are computed where they are used.

`Y[…, o, …] = Σ_t w(t - p(o)) · X[…, ⌊p(o)⌋ + t, …]`, with `p` in fp32 as `resize_weights` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.resize_weights import Plan

__all__ = ["resized"]


def resized(node: Node, x: Any, plan: Plan, attributes: dict[str, Any]) -> Any:
    """Return a tensor resized along an axis; a plan without a scale has that of its sizes. Raise Refused for what is
    computed for known sizes alone.
    """
    mode = attributes.get("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear", "trilinear", "cubic"):
        raise Refused(f"mode={mode}")
    if attributes.get("exclude_outside", 0) or (attributes.get("antialias", 0) and mode != "nearest"):
        raise Refused("antialias or exclude_outside along an axis of symbolic size: `--shape` fixes it")
    transform = attributes.get("coordinate_transformation_mode", "half_pixel")
    if transform not in _POSITIONS:
        raise Refused(f"coordinate_transformation_mode={transform} along an axis of symbolic size: `--shape` fixes it")
    if transform == "align_corners" and plan.scale is not None and not float(plan.scale).is_integer():
        raise Refused("align_corners with a scale that gives no whole size")
    axis, given = plan.axis, plan.scale
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    if rounding == "by_scale":
        rounding = "ceil" if given is not None and given < 1 else "floor"

    def kernel(data: te.Tensor, size: Any, out: Any) -> te.Tensor:
        count, target = (tirx.Cast("float32", each) for each in (_int64(size), _int64(out)))
        scale = target / count if given is None else tirx.const(given, "float32")

        def at(index: tuple[Any, ...], place: Any) -> Any:
            inside = tirx.max(tirx.min(place, _int64(size) - 1), tirx.const(0, "int64"))
            return data(*index[:axis], inside, *index[axis + 1 :])

        def element(*index: Any) -> Any:
            place = tirx.Cast("float32", index[axis])
            found = _POSITIONS[transform](place, count, target, scale)
            if mode == "nearest":
                return at(index, tirx.Cast("int64", _ROUND[rounding](found)))
            first = tirx.floor(found)
            rest = (found - first).astype(data.dtype)
            low = tirx.Cast("int64", first)
            if mode != "cubic":
                return at(index, low) * (1 - rest) + at(index, low + 1) * rest
            slope = tirx.const(attributes.get("cubic_coeff_a", -0.75), data.dtype)
            weights = [_far(1 + rest, slope), _near(rest, slope), _near(1 - rest, slope), _far(2 - rest, slope)]
            parts = [at(index, low + step) * weight for step, weight in zip((-1, 0, 1, 2), weights, strict=True)]
            return parts[0] + parts[1] + parts[2] + parts[3]

        shape = [*data.shape[:axis], out, *data.shape[axis + 1 :]]
        return te.compute(shape, element, name="resize")

    return node.te(kernel, x, plan.size, plan.out, primfunc_name_hint="resize")


def _int64(size: Any) -> Any:
    return tirx.const(size, "int64") if isinstance(size, int) else size


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
