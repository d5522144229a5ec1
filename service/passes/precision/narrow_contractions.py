"""Convolutions and matmuls in fp32 get 16-bit operands and keep their fp32 accumulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.common.dot_product import instruction
from relaxc.schedules.hardware import Cpu
from relaxc.service.passes.common.convolutions import conv2d_operator
from relaxc.service.passes.common.images import has_channels
from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, static_shape
from relaxc.service.passes.layout.channels_last import comes_channels_last
from relaxc.service.passes.precision.dtypes import CONTRACTIONS, with_dtype

__all__ = ["NarrowContractions", "gains_on", "has_weight"]


def has_weight(call: relax.Call, scope: Scope) -> bool:
    """Return whether it is a product or a 2-D convolution by a constant: what a CPU's templates pack the weights of.

    The constant may still have to be cast or transposed. Depthwise convolutions among layers on NHWC stay in float32,
    as the residual that they read does.
    """
    if _is_depthwise(call) and comes_channels_last(call.args[0], scope):
        return False
    weight, rank = call.args[1], {"relax.matmul": 2, "relax.nn.conv2d": 4}.get(op_name(call))
    while (moved := scope.call(weight, "relax.astype", "relax.permute_dims")) is not None:
        weight = moved.args[0]
    return rank == weight.ty.ndim and scope.constant(weight) is not None


def gains_on(cpu: Cpu, dtype: str) -> Callable[[relax.Call, Scope], bool]:
    """Return what takes calls with a weight that `cpu` does not compute slower with operands of `dtype`.

    On Sapphire Rapids VDPBF16PS does half of the multiply-adds of float32's instructions: there it is convolutions by
    tile registers that gain, and depthwise ones, for what is between those stays narrow.
    """
    found = instruction((dtype, dtype), "float32", 2, cpu)
    by_vectors = found is None or found.rate >= cpu.reference("float32").rate

    def gains(call: relax.Call, scope: Scope) -> bool:
        if not has_weight(call, scope):
            return False
        return by_vectors or op_name(call) == "relax.matmul" or _convolves_faster(call, cpu, dtype)

    return gains


def _convolves_faster(call: relax.Call, cpu: Cpu, dtype: str) -> bool:
    """Whether the plan of a convolution is of fewer cycles with operands of `dtype` than with those of float32."""
    (data, weight), shape = call.args, static_shape(call.args[1])
    dtypes = planning.conv2d_dtypes(dtype, dtype, "float32")
    if dtypes is None or shape is None or not has_channels(data):
        return False
    if _is_depthwise(call):
        return planning.has_tiles(cpu, dtypes["operands"])
    lanes = cpu.lanes(str(weight.ty.dtype))
    op = conv2d_operator(data, shape, call.attrs, dtypes, lanes)
    if not planning.is_blockable(op, cpu):
        return False
    narrow = op.in_blocks(lanes)
    wide = replace(narrow, operands=(narrow.accumulate, narrow.accumulate))
    return planning.default(narrow, cpu).cycles < planning.default(wide, cpu).cycles


def _is_depthwise(call: relax.Call) -> bool:
    return (
        op_name(call) == "relax.nn.conv2d"
        and int(call.attrs.groups) > 1
        and (static_shape(call.args[1]) or ())[1:2] == (1,)
    )


@tvm.transform.module_pass(opt_level=0, name="NarrowContractions")
class NarrowContractions:
    """`matmul(a₃₂, b₃₂) → matmul(cast₁₆(a₃₂), cast₁₆(b₃₂), out_dtype=float32)`, and so for every convolution.

    Upstream's ToMixedPrecision knows float16 only, and casts each result back to it at once, so that bias,
    activation and residual are computed and rounded in 16 bits; here the whole epilogue stays in fp32. `takes` says
    which contractions it is for: by default all.
    """

    def __init__(self, dtype: str, takes: Callable[[relax.Call, Scope], bool] = lambda call, scope: True) -> None:
        self.dtype, self.takes = dtype, takes

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with 16-bit operands of every contraction that was in fp32."""
        return rewrite_calls(module, dict.fromkeys(CONTRACTIONS, self._narrow), rounds=1)

    def _narrow(self, call: relax.Call, scope: Scope) -> relax.Expr | None:
        if any(str(expr.ty.dtype) != "float32" for expr in (call, *call.args)) or not self.takes(call, scope):
            return None
        args = [scope.emit(relax.op.astype(arg, self.dtype)) for arg in call.args]
        return with_dtype(call, args, "float32")
