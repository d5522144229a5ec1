"""Depthwise convolutions among layer norms and linear layers run on NHWC, as these do: nothing is transposed."""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Depthwise2d
from relaxc.schedules.plan import Planner
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.common.images import pair, sides
from relaxc.service.passes.common.rewrite import Rule, Scope, is_tensor_constant, rewrite_calls, static_shape

__all__ = ["ChannelsLast", "comes_channels_last"]

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

    def __init__(self, cpu: Cpu, planner: Planner | None = None) -> None:
        self.planner = planner or planning.Defaults(cpu)
        self.lanes = cpu.lanes(32)

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with these convolutions on NHWC; the same object if there are none."""
        rules: dict[str, Rule] = {"nn.conv2d": partial(_depthwise, planner=self.planner, lanes=self.lanes)}
        changed = rewrite_calls(module, rules, rounds=1)
        return module if changed.same_as(module) else rewrite_calls(changed, {**rules, "permute_dims": _permute})


def _inside(expr: relax.Expr, scope: Scope) -> relax.Expr | None:
    """The NHWC value that `expr` is the NCHW form of."""
    call = scope.call(expr, "relax.permute_dims")
    return call.args[0] if call is not None and _axes(call) == _TO_NCHW else None


def comes_channels_last(data: relax.Expr, scope: Scope) -> bool:
    """Return whether an image is the NCHW form of an NHWC value, or of a sum with one, as `ChannelsLast` wants it."""
    return _inside(data, scope) is not None or _sum_with_one(data, scope) is not None


def _axes(call: relax.Call) -> list[int]:
    return [int(axis) for axis in call.attrs.axes or ()]


def _sum_with_one(expr: relax.Expr, scope: Scope) -> relax.Call | None:
    """The addition of two images of which one is the NCHW form of an NHWC value."""
    call = scope.call(expr, "relax.add")
    if call is None or all(_inside(arg, scope) is None for arg in call.args):
        return None
    images = all(arg.ty.ndim == 4 and not is_tensor_constant(arg) for arg in call.args)
    return call if images else None


def _depthwise(call: relax.Call, scope: Scope, *, planner: Planner, lanes: int) -> relax.Expr | None:
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
    plan = planner.plan(
        Depthwise2d(
            batch=image[0],
            channels=channels,
            height=image[2],
            width=image[3],
            kernel=(array.shape[2], array.shape[3]),
            strides=pair(attrs.strides),
            padding=sides(attrs.padding),
            dilation=pair(attrs.dilation),
            channels_last=True,
        )
    )
    function, packed = planning.computation(plan), constant(planning.pack(plan, array))
    name, pattern = planning.kernel_name(plan), {"op_pattern": _OUT_FUSABLE}
    result = scope.emit_te(function, source, packed, name=name, attrs=pattern)
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
