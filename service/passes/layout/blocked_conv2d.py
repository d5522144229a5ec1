"""Convolutions and transposed ones on blocked images, as their plans say, with their weights packed at compile time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tvm import relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.conv.blocked_compute import pack_channels
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.operators import Conv2d, Depthwise2d
from relaxc.service.passes.common.constants import array_of, constant
from relaxc.service.passes.common.convolutions import conv2d_operator
from relaxc.service.passes.common.images import channels_of, has_channels, ints, known
from relaxc.service.passes.common.rewrite import is_tensor_constant, static_shape
from relaxc.service.passes.kernels.blocked_transposed import Phases
from relaxc.service.passes.layout.blocked_images import Blocked, BlockedImages, Rule
from relaxc.service.passes.precision.dtypes import is_low

__all__ = ["RULES"]

_OUT_FUSABLE = 4
"""TVM's pattern for fusion: what is elementwise is computed behind it."""


def _conv2d(images: BlockedImages, call: relax.Call) -> Blocked | None:
    data, weight = call.args
    attrs, shape = call.attrs, static_shape(weight)
    if not is_tensor_constant(weight) or shape is None or not has_channels(data):
        return None
    if images.joins and not all(map(known, list(data.ty.shape)[2:])):
        return None
    dtypes = planning.conv2d_dtypes(str(data.ty.dtype), str(weight.ty.dtype), str(call.ty.dtype))
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW") or dtypes is None:
        return None
    op = _operator(images, data, shape, attrs, dtypes)
    array = array_of(weight)
    if op.groups == op.channels == op.filters and shape[1] == 1:
        return _depthwise(images, op, array, data)
    if not planning.is_blockable(op, images.cpu):
        return None
    filters, op = op.filters, op.in_blocks(images.lanes)
    if is_low(data) and planning.taken_at_once(images.planner.plan(op)) == 1:
        op, array = replace(op, operands=(op.accumulate, op.accumulate)), array.astype(op.accumulate)
    source = _few_channels(images, op, data) if op.plain else images.pack(data)
    if op.operands[0] != str(data.ty.dtype):
        source = images.emit(relax.op.astype(source, op.operands[0]))
    operands = [source]
    if source in images.gated and images.reads[data] == 1 and op.groups == 1:
        image, gate = images.gated[source]
        gated = replace(op, gated=True)
        if images.planner.plan(op).template == images.planner.plan(gated).template:
            op, operands = gated, [image, gate]
    return Blocked(_planned(images, op, array, *operands), filters)


def _few_channels(images: BlockedImages, op: Conv2d, data: relax.Expr) -> relax.Expr:
    """A first layer's image: as it comes, or in blocks of as many channels as an instruction takes."""
    plain, lanes = images.plain(data), planning.taken_at_once(images.planner.plan(op))
    return plain if lanes == 1 else images.te(partial(pack_channels, lanes=lanes), plain, name="pack_channels")


def _depthwise(images: BlockedImages, op: Conv2d, weight: Any, data: relax.Expr) -> Blocked | None:
    """Of floats; those that were bytes before a cast are read as these. Sums and weights are of fp32."""
    if not is_float(op.operands[0]):
        return None
    source, before = images.pack(data), images.before_cast(data)
    operands, weight = (op.operands[0], op.accumulate), weight.astype(op.accumulate)
    if before is not None:
        source, operands = before, (str(before.ty.dtype), operands[1])
    depthwise = Depthwise2d(channels=images.filled(op.channels), operands=operands, **_geometry(op))
    return Blocked(_planned(images, depthwise, weight, source), op.filters)


def _operator(
    images: BlockedImages, data: relax.Expr, weight: tuple[int, ...], attrs: Any, dtypes: dict[str, Any]
) -> Conv2d:
    """What a convolution of `data` with a weight of this shape is; an image that is in blocks is not plain."""
    of_blocks = {"plain": False} if data in images.blocked else {}
    return conv2d_operator(data, weight, attrs, dtypes, images.lanes, **of_blocks)


def _geometry(op: Conv2d) -> dict[str, Any]:
    names = ("batch", "height", "width", "kernel", "strides", "padding", "dilation")
    return {name: getattr(op, name) for name in names}


def _planned(
    images: BlockedImages, op: Conv2d | Depthwise2d, weight: Any, image: relax.Expr, *gates: relax.Expr
) -> relax.Var:
    """The convolution as its plan says, with the weight packed for it."""
    plan = images.planner.plan(op)
    images.convolutions += 1
    packed = constant(planning.arranged(plan, weight))
    return images.te(planning.computation(plan), image, packed, *gates, name=planning.kernel_name(plan))


def _transposed(images: BlockedImages, call: relax.Call) -> Blocked | None:
    (data, weight), attrs = call.args, call.attrs
    if (
        not is_tensor_constant(weight)
        or not has_channels(data)
        or not all(map(known, list(data.ty.shape)[2:]))
        or str(weight.ty.dtype) != "float32"
    ):
        return None
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout
    if layouts != ("NCHW", "IOHW", "NCHW") or {int(attrs.groups), *ints(attrs.dilation, 2)} != {1}:
        return None
    taps = weight.value.numpy()
    phases = Phases.of(list(data.ty.shape)[2:], list(call.ty.shape)[2:], taps, attrs)
    op = phases.operator(known(data.ty.shape[0]), channels_of(data), images.lanes)
    result = _planned(images, op, phases.weight(taps, images.lanes), images.pack(data))
    result = images.te(phases.interleave, result, name="interleave", op_pattern=_OUT_FUSABLE)
    return Blocked(result, phases.channels)


RULES: dict[str, Rule] = {"relax.nn.conv2d": _conv2d, "relax.nn.conv2d_transpose": _transposed}
