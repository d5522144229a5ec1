"""Resize and Upsample: along each axis a weighted sum of a few elements, places and weights computed at import.

`Y[…, o, …] = Σ_t W[o, t] · X[…, P[o, t], …]` for one axis after the other; the operator is separable. The weights
follow the reference evaluator of the ONNX project (onnx/reference/ops/op_resize.py).
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import cast, full_precision, relax_dim
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.ops.resize_sizes import computed_sizes, kept_ratio, resized
from relaxc.service.frontend.onnx.ops.resize_weights import Plan, Read, taps


@op("Upsample")
def _upsample(node: Node) -> Any:
    """Superseded by Resize in opset 10."""
    scales = list(node.attr("scales", ())) or _numbers(node, 1)
    return _resize_axes(node, _first(node), _scaled(node, scales, list(range(node.rank(0))), None))


def _first(node: Node) -> dict[str, Any]:
    """The attributes that Resize has since opset 11, as the operators before it behave."""
    mode = node.attr("mode", "nearest")
    return {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "by_scale"}


@op("Resize")
def _resize(node: Node) -> Any:
    if node.opset < 11:
        return _resize_axes(node, _first(node), _scaled(node, _numbers(node, 1), list(range(node.rank(0))), None))
    rank = node.rank(0)
    axes = [axis % rank for axis in node.attr("axes", range(rank))]
    roi = _numbers(node, 1) if _is_crop(node.attributes) and node.has(1) and node.shape(1) != [0] else None
    if node.has(3) and node.shape(3) != [0]:
        plans = _sized(node, node.dims(3, "sizes"), axes, roi)
    else:
        plans = _scaled(node, _numbers(node, 2), axes, roi)
    return _resize_axes(node, node.attributes, plans)


def _numbers(node: Node, index: int) -> list[Any]:
    """The numbers of an input, each a float or, where the data decides it, what a kernel reads."""
    if node.is_known(index) and not node.inputs[index].symbolic:
        return [float(value) for value in node.inputs[index].array.reshape(-1)]
    shape = node.shape(index)
    if len(shape) != 1 or not isinstance(shape[0], int):
        raise Refused("scales or a region of which nobody knows how many they are")
    tensor = node.emit(cast(node.tensor(index), "float32"))
    return [Read(tensor, place) for place in range(shape[0])]


def _regions(roi: list[Any] | None, axes: list[int]) -> list[tuple[Any, Any]]:
    if roi is None:
        return [(0.0, 1.0)] * len(axes)
    return list(zip(roi[: len(axes)], roi[len(axes) :], strict=True))


def _is_crop(attributes: dict[str, Any]) -> bool:
    return bool(attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize")


def _scaled(node: Node, scales: list[Any], axes: list[int], roi: list[Any] | None) -> list[Plan]:
    shape, regions = node.shape(0), _regions(roi, axes)
    plans = [Plan(a, shape[a], None, scale, region) for a, scale, region in zip(axes, scales, regions, strict=True)]
    for plan in plans:
        plan.out = _times(node, plan)
    late = [plan for plan in plans if plan.out is None]
    for plan, out in zip(late, computed_sizes(node, late) if late else [], strict=True):
        plan.out = out
    return plans


def _times(node: Node, plan: Plan) -> Any:
    """A size times a scale, rounded down, by fp32 numbers as ONNX Runtime has it; None where a kernel computes it."""
    import numpy as np

    if any(isinstance(each, Read) for each in (plan.scale, *plan.region)):
        return None
    plan.scale = float(np.float32(plan.scale))
    start, end = map(np.float32, plan.region)
    if isinstance(plan.size, int):
        return math.floor(np.float32(plan.size) * (np.float32(plan.scale) * (end - start)))
    above, below = plan.scale.as_integer_ratio()
    if below > _FINEST or plan.region != (0.0, 1.0):
        return None
    return onnx_dims.simplify(plan.size * above // below, node.scope)


_FINEST = 256
"""With scales of so few digits the product in fp32 is exact."""


def _sized(node: Node, sizes: list[Any], axes: list[int], roi: list[Any] | None) -> list[Plan]:
    shape, policy = node.shape(0), node.attr("keep_aspect_ratio_policy", "stretch")
    regions = _regions(roi, axes)
    if policy == "stretch":
        plans = []
        for axis, out, region in zip(axes, sizes, regions, strict=True):
            size = shape[axis]
            if isinstance(size, int) and isinstance(out, int):
                plans.append(Plan(axis, size, out, out / size, region))
            else:
                plans.append(_symbolic(node, axis, size, out, region))
        return plans
    if not all(isinstance(v, int) for v in [*sizes, *(shape[a] for a in axes)]):
        return kept_ratio(
            node, [Plan(a, shape[a], out, None, r) for a, out, r in zip(axes, sizes, regions, strict=True)]
        )
    choose = max if policy == "not_smaller" else min
    scale = choose(out / shape[axis] for axis, out in zip(axes, sizes, strict=True))
    return [
        Plan(axis, shape[axis], math.floor(scale * shape[axis] + 0.5), scale, region)
        for axis, region in zip(axes, regions, strict=True)
    ]


def _symbolic(node: Node, axis: int, size: Any, out: Any, region: tuple[Any, Any]) -> Plan:
    """An axis of sizes known at a call: as it is, or grown by a whole factor, or from any size to any."""
    for factor in (1, 2, 3, 4, 8, 16):
        if node.scope.analyzer.can_prove_equal(relax_dim(out), relax_dim(size) * factor):
            return Plan(axis, size, out, float(factor), region)
    return Plan(axis, size, out, None, region)


def _resize_axes(node: Node, attributes: dict[str, Any], plans: list[Plan]) -> Any:
    def run(x: Any) -> Any:
        for plan in plans:
            if plan.is_known:
                x = _resize_static(node, x, plan, attributes)
            elif plan.scale != 1.0 or plan.region != (0.0, 1.0):
                x = _resize_symbolic(node, x, plan, attributes)
        return x

    if attributes.get("mode", "nearest") == "nearest" and not _is_crop(attributes):
        return run(node.tensor(0))
    mode = _bilinear(node, attributes, plans)
    if mode is not None:
        return _resize2d(node, plans, mode)
    if not node.dtype(0).startswith(("float", "bfloat")):
        raise Refused(f"mode={attributes.get('mode')} of {node.dtype(0)}")
    return full_precision(node, run, node.tensor(0))


def _bilinear(node: Node, attributes: dict[str, Any], plans: list[Plan]) -> str | None:
    """The mode of relax's bilinear interpolation that gives the same, None where none does: the sides of a float32
    image of known sizes, by the ratio of the sizes.
    """
    by_axis = {plan.axis: plan for plan in plans}
    kept = all(by_axis.pop(axis).scale == 1.0 for axis in (0, 1) if axis in by_axis)
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    other = attributes.get("antialias") or attributes.get("exclude_outside")
    plain = attributes.get("mode") == "linear" and not other
    if not (plain and kept and node.rank(0) == 4 and set(by_axis) == {2, 3} and node.dtype(0) == "float32"):
        return None
    if all(plan.size == plan.out for plan in by_axis.values()):
        return None
    for plan in by_axis.values():
        if not plan.is_known or plan.out < 2 or abs(plan.scale * plan.size - plan.out) > 1e-6:
            return None
    return {"half_pixel": "half_pixel", "pytorch_half_pixel": "half_pixel", "align_corners": "align_corners"}.get(mode)


def _resize2d(node: Node, plans: list[Plan], mode: str) -> Any:
    sides = {plan.axis: plan.out for plan in plans}
    return relax.op.image.resize2d(
        node.tensor(0),
        (sides[2], sides[3]),
        method="linear",
        coordinate_transformation_mode=mode,
        rounding_method="",
        layout="NCHW",
    )


def _resize_symbolic(node: Node, x: Any, plan: Plan, attributes: dict[str, Any]) -> Any:
    """Along a symbolic axis; by a whole factor to the nearest element, which is each that many times, by `repeat`."""
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    plain = (mode == "asymmetric" and rounding in ("floor", "by_scale")) or (
        mode.startswith("half_pixel") and "round" in rounding
    )
    whole = isinstance(plan.scale, float) and plan.scale.is_integer()
    if attributes.get("mode", "nearest") == "nearest" and plain and whole:
        return node.emit(relax.op.repeat(x, int(plan.scale or 1), plan.axis))
    return resized(node, x, plan, attributes)


def _resize_static(node: Node, x: Any, plan: Plan, attributes: dict[str, Any]) -> Any:
    import numpy as np

    places, weights, outside = taps(plan, attributes, dtype_of(x))
    if plan.size == plan.out and not outside.any():
        own = places == np.arange(plan.size)[:, None]
        identity = ((weights * own).sum(axis=1) == 1).all() and not (weights * ~own).any()
        if identity:
            return x
    if weights.shape[1] == 1 and not outside.any() and (weights == 1).all():
        return node.emit(relax.op.take(x, relax.const(places[:, 0], "int64"), plan.axis, mode="clip"))
    return _weighted(node, x, plan, places, weights, outside, attributes.get("extrapolation_value", 0.0))


def _weighted(node: Node, x: Any, plan: Plan, places: Any, weights: Any, outside: Any, filler: float) -> Any:
    axis, taps = plan.axis, weights.shape[1]

    def kernel(data: te.Tensor, where: te.Tensor, share: te.Tensor, off: te.Tensor) -> te.Tensor:
        tap = te.reduce_axis((0, taps), name="tap")
        shape = [*data.shape[:axis], plan.out, *data.shape[axis + 1 :]]

        def total(*i: Any) -> Any:
            o = i[axis]
            return te.sum(share[o, tap].astype(data.dtype) * data(*i[:axis], where[o, tap], *i[axis + 1 :]), axis=tap)

        result = te.compute(shape, total, name="resize")
        if not outside.any():
            return result
        fixed = tirx.const(filler, data.dtype)
        return te.compute(shape, lambda *i: tirx.Select(off[i[axis]], fixed, result(*i)), name="extrapolate")

    dtype = "float64" if dtype_of(x) == "float64" else "float32"
    constants = relax.const(places, "int64"), relax.const(weights, dtype), relax.const(outside, "bool")
    return node.te(kernel, x, *constants, primfunc_name_hint="resize")
