"""Which elements of an axis an interpolation takes for each of its results, and with what weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from relaxc.service.frontend.onnx.node import Refused

__all__ = ["Plan", "Read", "taps"]


class Read(NamedTuple):
    """A number that the data decides: an element of a float32 tensor."""

    tensor: Any
    place: int


class Plan:
    """One axis: from `size` to `out` with `scale` (which need not be out / size; None where it is, of sizes that a call
    has), within a region. Scale and region are floats, or `Read`.
    """

    def __init__(self, axis: int, size: Any, out: Any, scale: Any, region: tuple[Any, Any]) -> None:
        self.axis, self.region = axis, region
        self.scale: Any = scale
        self.size: Any = size
        self.out: Any = out

    @property
    def is_known(self) -> bool:
        """Whether all of it is known before the run."""
        numbers = isinstance(self.size, int) and isinstance(self.out, int)
        return numbers and not any(isinstance(each, Read) for each in (self.scale, *self.region))


def taps(plan: Plan, attributes: dict[str, Any], dtype: str) -> tuple[Any, Any, Any]:
    """Return places `[out, taps]`, weights `[out, taps]`, and which outputs lie outside of the region
    (extrapolated), of a tensor of this dtype.
    """
    import numpy as np

    mode = attributes.get("mode", "nearest")
    if attributes.get("nearest_mode") == "by_scale":  # as ONNX Runtime and the examples of opset 10 have it
        attributes = attributes | {"nearest_mode": "ceil" if plan.scale < 1 else "floor"}
    antialias = bool(attributes.get("antialias", 0)) and plan.scale < 1 and mode != "nearest"
    places, weights, outside = [], [], []
    for out in range(plan.out):
        position = _position(out, plan, attributes, np.float64 if dtype == "float64" else np.float32)
        first, own = _kernel(mode, position, plan.scale if antialias else 1.0, attributes)
        row = np.arange(first, first + len(own))
        if attributes.get("exclude_outside", 0):
            own = np.where((row < 0) | (row >= plan.size), 0.0, own)
            own = own / own.sum()
        places.append(np.clip(row, 0, plan.size - 1))
        weights.append(own)
        crop = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        outside.append(crop and not 0 <= position <= plan.size - 1)
    width = max(map(len, weights))
    pad = [(0, width - len(row)) for row in weights]
    return (
        np.array([np.pad(row, p, mode="edge") for row, p in zip(places, pad, strict=True)]),
        np.array([np.pad(row, p) for row, p in zip(weights, pad, strict=True)]),
        np.array(outside),
    )


def _position(out: int, plan: Plan, attributes: dict[str, Any], number: Callable[[float], Any]) -> float:
    """The place in the input that output element `out` comes from; ties are rounded by what `number`, which is fp32
    but for a tensor of float64, gives.
    """
    half = number(0.5)
    size, target, place, scale = (number(v) for v in (plan.size, plan.out, out, plan.scale))
    start, end = (number(v) for v in plan.region)
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "align_corners" and abs(scale * size - target) > 1e-4:
        # ONNX Runtime places the corners by the rounded size, the ONNX project by the one before rounding.
        raise Refused("align_corners with a scale that gives no whole size")
    match mode:
        case "half_pixel":
            found = (place + half) / scale - half
        case "half_pixel_symmetric":
            found = size / 2 * (1 - target / (scale * size)) + (place + half) / scale - half
        case "pytorch_half_pixel":
            found = (place + half) / scale - half if plan.out > 1 else number(0)
        case "align_corners":
            found = place * (size - 1) / (target - 1) if plan.out > 1 else number(0)
        case "asymmetric":
            found = place / scale
        case "tf_crop_and_resize":
            span = (end - start) * (size - 1)
            found = (
                start * (size - 1) + place * span / (target - 1) if plan.out > 1 else half * (start + end) * (size - 1)
            )
        case "tf_half_pixel_for_nn":
            found = (place + half) / scale
        case other:
            raise Refused(f"coordinate_transformation_mode={other}")
    return float(found)


_ROUND: dict[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


def _kernel(mode: str, position: float, scale: float, attributes: dict[str, Any]) -> tuple[int, Any]:
    """The first place and the weights; with `scale` under 1 the kernel is widened against aliasing."""
    import numpy as np

    if mode == "nearest":
        return _ROUND[attributes.get("nearest_mode", "round_prefer_floor")](position), np.ones(1)
    if mode not in ("linear", "bilinear", "trilinear", "cubic"):
        raise Refused(f"mode={mode}")
    half = 2 if mode == "cubic" else 1
    reach = half / scale
    first, last = math.floor(position - reach) + 1, math.ceil(position + reach) - 1
    if scale == 1.0:
        first, last = math.floor(position) - half + 1, math.floor(position) + half
    distance = np.abs((np.arange(first, last + 1) - position) * scale)
    own = _cubic(distance, attributes.get("cubic_coeff_a", -0.75)) if half == 2 else np.maximum(1 - distance, 0)
    return first, own / own.sum() if scale != 1.0 else own


def _cubic(distance: Any, a: float) -> Any:
    """Keys' kernel (1981), with `a` the slope at distance 1."""
    import numpy as np

    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
