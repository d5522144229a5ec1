"""Elementwise operators, casts and concatenation of images in NHWC."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from relaxc.schedules.cuda.conv import compute
from relaxc.schedules.ir import tir
from relaxc.service.passes.common.constants import array_of, constant
from relaxc.service.passes.common.images import BINARY, ZERO_KEEPING_UNARY
from relaxc.service.passes.common.rewrite import dims_of, is_tensor_constant, op_name
from relaxc.service.passes.layout.nhwc_images import ELEMENTWISE, TO_NHWC, NhwcImages, Rule, sizes_of
from relaxc.service.passes.precision.dtypes import LOW

__all__ = ["RULES"]

_UNARY = ZERO_KEEPING_UNARY | {f"relax.{name}" for name in ("exp", "rsqrt", "nn.hardswish", "nn.softplus")}


def _unary(images: NhwcImages, call: relax.Call) -> relax.Var | None:
    data, *rest = call.args
    if data not in images.last:
        return None
    return images.emit(relax.Call(call.op, [images.last[data], *rest], call.attrs))


def _astype(images: NhwcImages, call: relax.Call) -> relax.Var | None:
    result = _unary(images, call)
    if result is not None and str(call.ty.dtype) == "float32":
        found = images.last[call.args[0]]
        images.narrow[result] = images.narrow.get(found, found)
    return result


def _quantization(images: NhwcImages, call: relax.Call) -> relax.Var | None:
    """To bytes or from them, with one scale and one zero point for the image."""
    single = (all(isinstance(size, int) and size == 1 for size in sizes_of(arg)) for arg in call.args[1:])
    return _unary(images, call) if all(single) else None


def _binary(images: NhwcImages, call: relax.Call) -> relax.Var | None:
    if call.ty.ndim != 4 or not any(arg in images.last for arg in call.args):
        return None
    operands = [_operand(images, arg) for arg in call.args]
    if any(operand is None for operand in operands):
        return None
    if op_name(call) == "relax.add" and all(_is_wide_image(images, operand, call) for operand in operands):
        return _sum_with_rounded(images, operands)
    return images.emit(relax.Call(call.op, operands, call.attrs))


def _is_wide_image(images: NhwcImages, value: relax.Expr, call: relax.Call) -> bool:
    """Whether it is an fp32 image of the size of the call, that is not the widened form of another."""
    counts = tir.product(sizes_of(value)), tir.product(sizes_of(call))
    is_image = tir.same_size(*counts) and not is_tensor_constant(value)
    return is_image and str(value.ty.dtype) == "float32" and value not in images.narrow and images.low in LOW


def _sum_with_rounded(images: NhwcImages, operands: list[relax.Expr]) -> relax.Var:
    """Of two images that are added one is written to memory, in 16 bits then: the later one, as FuseOps has it.

    The sum is one operator with the cast: FuseOps would put a cast of its own into the kernel that writes.
    """
    order = {var: index for index, var in enumerate(images.last.values())}
    kept, rounded = sorted(operands, key=lambda operand: order.get(operand, -1))
    return images.te(compute.mixed_sum, kept, images.cast(rounded, images.low), name="add", pattern=ELEMENTWISE)


def _operand(images: NhwcImages, arg: relax.Expr) -> relax.Expr | None:
    """`arg` so that it broadcasts in NHWC, or None."""
    if arg in images.last:
        return images.last[arg]
    shape = dims_of(arg)
    if shape is None:
        return None
    if is_tensor_constant(arg):
        array = array_of(arg)
        return arg if array.size == 1 and array.ndim == 0 else constant(_last(array))
    return images.image(arg) if len(shape) == 4 else None


def _last(array: Any) -> Any:
    """A constant that broadcasts with NCHW, as it broadcasts with NHWC."""
    return np.ascontiguousarray(array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(TO_NHWC))


def _concat(images: NhwcImages, call: relax.Call) -> relax.Var | None:
    value = call.args[0]
    value = images.binding(value) if isinstance(value, relax.Var) else value
    fields = list(value.fields) if isinstance(value, relax.Tuple) else []
    if not fields or call.ty.ndim != 4 or call.attrs.axis is None or int(call.attrs.axis) % 4 != 1:
        return None
    if not any(field in images.last for field in fields) or any(dims_of(field) is None for field in fields):
        return None
    return images.emit(relax.op.concat([images.image(field) for field in fields], 3))


RULES: dict[str, Rule] = {
    "relax.concat": _concat,
    "relax.astype": _astype,
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(("relax.quantize", "relax.dequantize"), _quantization),
    **dict.fromkeys((*BINARY, "relax.divide"), _binary),
}
