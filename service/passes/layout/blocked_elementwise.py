"""Elementwise operators, concatenation, and what takes or interpolates pixels, on blocked images."""

from __future__ import annotations

from functools import partial

from tvm import relax, topi

from relaxc.schedules.cpu.conv.blocked_compute import pad
from relaxc.schedules.ir.dtypes import is_float
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.common.images import (
    BINARY,
    ZERO_KEEPING_UNARY,
    channels_of,
    has_channels,
    ints,
    is_pixel,
    known,
    same_batch,
)
from relaxc.service.passes.common.rewrite import is_tensor_constant, op_name
from relaxc.service.passes.kernels.blocked_resize import bilinear
from relaxc.service.passes.layout.blocked_images import Blocked, BlockedImages, Rule
from relaxc.service.passes.layout.blocked_weights import pack_broadcast

__all__ = ["RULES"]

_INJECTIVE = 2
"""TVM's pattern for fusion: it is not fused behind a contraction. That of one pixel is computed once then, and not for
each element of the image that it is multiplied with."""


def _unary(images: BlockedImages, call: relax.Call) -> Blocked | None:
    data, *rest = call.args
    if data not in images.blocked:
        return None
    found = images.blocked[data]
    return Blocked(images.emit(relax.Call(call.op, [found.var, *rest], call.attrs)), found.channels)


def _cast(images: BlockedImages, call: relax.Call) -> Blocked | None:
    """A cast of bytes, or of sums of them, or from floats to floats. These become integers by `quantize`."""
    source, result = str(call.args[0].ty.dtype), str(call.ty.dtype)
    return None if is_float(source) and not is_float(result) else _unary(images, call)


def _quantized(images: BlockedImages, call: relax.Call) -> Blocked | None:
    """Quantization or dequantization with one scale and one zero point."""
    data, *numbers = call.args
    if data not in images.blocked or not all(
        is_tensor_constant(each) and each.value.numpy().size == 1 for each in numbers
    ):
        return None
    found = images.blocked[data]
    scalars = [constant(each.value.numpy().reshape(())) for each in numbers]
    return Blocked(images.emit(relax.Call(call.op, [found.var, *scalars], call.attrs)), found.channels)


def _pad(images: BlockedImages, call: relax.Call) -> Blocked | None:
    """Of rows and columns with one value, as images are whose zero point is not 0."""
    data, attrs = call.args[0], call.attrs
    widths = [int(width) for width in attrs.pad_width]
    if data not in images.blocked or attrs.pad_mode != "constant" or any(widths[:4]):
        return None
    top, bottom, left, right = widths[4:]
    padded = partial(pad, padding=(top, left, bottom, right), value=float(attrs.pad_value))
    return Blocked(images.te(padded, images.blocked[data].var, name="pad"), images.blocked[data].channels)


def _concat(images: BlockedImages, call: relax.Call) -> Blocked | None:
    """Of whole blocks along the channels, most of them blocked already: the last one may end within a block."""
    fields = images.fields(call.args[0])
    if call.attrs.axis is None or int(call.attrs.axis) % 4 != 1 or not all(map(has_channels, fields)):
        return None
    counts = [channels_of(field) for field in fields]
    blocked = sum(count for field, count in zip(fields, counts, strict=True) if field in images.blocked)
    if any(count % images.lanes for count in counts[:-1]) or 2 * blocked < sum(counts):
        return None
    return Blocked(images.emit(relax.op.concat([images.pack(field) for field in fields], 1)), sum(counts))


def _take(images: BlockedImages, call: relax.Call) -> Blocked | None:
    """Rows or columns, as upsampling takes each of them twice."""
    data, places = call.args
    if data not in images.blocked or call.attrs.axis is None or int(call.attrs.axis) % 4 < 2:
        return None
    found, axis = images.blocked[data], int(call.attrs.axis) % 4
    taken = relax.op.take(found.var, places, axis, mode=call.attrs.mode)
    return Blocked(images.emit(taken), found.channels) if is_tensor_constant(places) else None


def _resize(images: BlockedImages, call: relax.Call) -> Blocked | None:
    data = call.args[0]
    if data not in images.blocked or not all(map(known, list(call.ty.shape)[1:])) or not is_float(str(data.ty.dtype)):
        return None
    function = bilinear(call.attrs, ints(list(call.ty.shape)[2:], 2), images.lanes)
    found = images.blocked[data]
    return function and Blocked(images.te(function, found.var, name="resize2d"), found.channels)


def _divide(images: BlockedImages, call: relax.Call) -> Blocked | None:
    """Of whole blocks only: lanes past the last channel would be 0 / 0."""
    return _binary(images, call) if channels_of(call) % images.lanes == 0 else None


def _binary(images: BlockedImages, call: relax.Call) -> Blocked | None:
    known = next((images.blocked[arg] for arg in call.args if arg in images.blocked), None)
    if known is None or channels_of(call) != known.channels:
        return None
    operands = [_operand(images, arg, known.channels) for arg in call.args]
    if None in operands:
        return None
    gates = [i for i, arg in enumerate(call.args) if not is_tensor_constant(arg) and is_pixel(arg)]
    if len(gates) != 1 or is_pixel(call) or not all(same_batch(arg, call) for arg in call.args):
        return Blocked(images.emit(relax.Call(call.op, operands, call.attrs)), known.channels)
    name = op_name(call).removeprefix("relax.")
    result = images.te(getattr(topi, name), *operands, name=name, op_pattern=_INJECTIVE)
    if name == "multiply":
        images.gated[result] = operands[1 - gates[0]], operands[gates[0]]
    return Blocked(result, known.channels)


def _operand(images: BlockedImages, arg: relax.Expr, channels: int) -> relax.Expr | None:
    """`arg` so that it broadcasts in blocked form, or None."""
    if arg in images.blocked:
        return images.blocked[arg].var if images.blocked[arg].channels == channels else None
    if is_tensor_constant(arg):
        array = arg.value.numpy()
        return constant(array.reshape(())) if array.size == 1 else pack_broadcast(array, channels, images.lanes)
    return images.pack(arg) if has_channels(arg) and channels_of(arg) == channels else None


RULES: dict[str, Rule] = {
    "relax.astype": _cast,
    "relax.quantize": _quantized,
    "relax.dequantize": _quantized,
    "relax.nn.pad": _pad,
    "relax.concat": _concat,
    "relax.take": _take,
    "relax.image.resize2d": _resize,
    "relax.divide": _divide,
    **dict.fromkeys(ZERO_KEEPING_UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
}
