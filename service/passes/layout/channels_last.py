"""Depthwise convolutions among layer norms and linear layers run on NHWC, as these do: nothing is transposed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax, te, topi

from schedules.hardware import Cpu
from service.passes.common.rewrite import Rule, Scope, is_tensor_constant, rewrite_calls, static_shape

__all__ = ["ChannelsLast", "depthwise_conv2d_nhwc"]

_TO_NCHW, _TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
_OUT_FUSABLE = 4
"""TVM's pattern of a contraction, behind which elementwise operators are fused."""


@tvm.transform.module_pass(opt_level=0, name="ChannelsLast")
class ChannelsLast:
    """ConvNeXt's blocks are NHWC but for the convolution, which is as fast there: vectors are along channels.

    - `depthwise(permute(x)) → permute(depthwise_nhwc(x))`, with the weights of constants as `[r, q, c]`;
    - `depthwise(permute(x) + y) → permute(depthwise_nhwc(permute⁻¹(permute(x) + y)))`, and
      `permute⁻¹(permute(x) + y) → x + permute⁻¹(y)`, which is then in the epilogue of the matmul that made x;
    - `permute⁻¹(permute(x)) → x`.

    Float32 images of known size, channels that fill vectors.
    """

    def __init__(self, cpu: Cpu) -> None:
        self.lanes = cpu.lanes(32)

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """The module with these convolutions on NHWC; the same object if there are none."""
        rules: dict[str, Rule] = {"nn.conv2d": partial(_depthwise, lanes=self.lanes)}
        changed = rewrite_calls(module, rules, rounds=1)
        return module if changed.same_as(module) else rewrite_calls(changed, {**rules, "permute_dims": _permute})


def _inside(expr: relax.Expr, scope: Scope) -> relax.Expr | None:
    """The NHWC value that `expr` is the NCHW form of."""
    call = scope.call(expr, "relax.permute_dims")
    return call.args[0] if call is not None and _axes(call) == _TO_NCHW else None


def _axes(call: relax.Call) -> list[int]:
    return [int(axis) for axis in call.attrs.axes or ()]


def _sum_with_one(expr: relax.Expr, scope: Scope) -> relax.Call | None:
    """The addition of two images of which one is the NCHW form of an NHWC value."""
    call = scope.call(expr, "relax.add")
    if call is None or all(_inside(arg, scope) is None for arg in call.args):
        return None
    images = all(arg.ty.ndim == 4 and not is_tensor_constant(arg) for arg in call.args)
    return call if images else None


def _depthwise(call: relax.Call, scope: Scope, *, lanes: int) -> relax.Expr | None:
    data, weight = call.args
    attrs, array, image = call.attrs, scope.constant(weight), static_shape(data)
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if array is None or image is None or layouts != ("NCHW", "OIHW", "NCHW") or str(call.ty.dtype) != "float32":
        return None
    channels = image[1]
    if int(attrs.groups) != channels or array.shape[:2] != (channels, 1) or channels % lanes:
        return None
    source = _channels_last(data, scope)
    if source is None:
        return None
    packed = relax.const(np.ascontiguousarray(array[:, 0].transpose(1, 2, 0)))
    geometry = {name: [int(each) for each in getattr(attrs, name)] for name in ("strides", "padding", "dilation")}
    function = partial(depthwise_conv2d_nhwc, **geometry)
    result = scope.emit_te(function, source, packed, name="depthwise_conv2d_nhwc", attrs={"op_pattern": _OUT_FUSABLE})
    return relax.op.permute_dims(result, _TO_NCHW)


def _channels_last(data: relax.Expr, scope: Scope) -> relax.Expr | None:
    """The NHWC form of `data` where it comes from one, or from a sum with one; else None."""
    found = _inside(data, scope)
    if found is not None or _sum_with_one(data, scope) is None:
        return found
    return scope.emit(relax.op.permute_dims(data, _TO_NHWC))


def _permute(call: relax.Call, scope: Scope) -> relax.Expr | None:
    if _axes(call) != _TO_NHWC:
        return None
    found, total = _inside(call.args[0], scope), _sum_with_one(call.args[0], scope)
    if found is not None or total is None:
        return found
    return relax.op.add(*(scope.emit(relax.op.permute_dims(arg, _TO_NHWC)) for arg in total.args))


def depthwise_conv2d_nhwc(
    data: te.Tensor, weight: te.Tensor, *, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> te.Tensor:
    """`C[n, h, w, c] += A[n, h*s + r*d, w*s + q*d, c] * W[r, q, c]` on zero-padded A; the last stage copies."""
    batch, height, width, channels = data.shape
    kernel = [int(size) for size in weight.shape[:2]]
    top, left, bottom, right = [*padding] * (4 // len(padding))
    out = [
        (int(size) + around - (k - 1) * d - 1) // s + 1
        for size, around, k, d, s in zip(
            (height, width), (top + bottom, left + right), kernel, dilation, strides, strict=True
        )
    ]
    pads = any(padding)
    source = topi.nn.pad(data, (0, top, left, 0), (0, bottom, right, 0), 0.0, name="pad") if pads else data
    r, q = (te.reduce_axis((0, size), name=name) for size, name in zip(kernel, "rq", strict=True))

    def element(n: Any, h: Any, w: Any, c: Any) -> Any:
        value = source[n, h * strides[0] + r * dilation[0], w * strides[1] + q * dilation[1], c]
        return te.sum(value * weight[r, q, c], axis=[r, q])

    shape = (batch, *out, channels)
    sums = te.compute(shape, element, name="depthwise_conv2d")
    return te.compute(shape, lambda *index: sums[index], name="written")
