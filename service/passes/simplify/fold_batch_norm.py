"""Batch normalization at inference is one multiplication and one addition by constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.common.rewrite import Scope, rewrite_calls

__all__ = ["FoldBatchNorm"]


@tvm.transform.module_pass(opt_level=0, name="FoldBatchNorm")
class FoldBatchNorm:
    """`batch_norm(x, g, b, m, v) → x * s + t` with `s = g / sqrt(v + ε)` and `t = b - m s`, computed in fp64.

    FoldScale then moves `s` into the weights before it. Upstream's FoldBatchnormToConv2D takes only a
    bare `conv2d → batch_norm`: no bias between them, no linear layer, no other convolution.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module without batch_norm calls of constant statistics."""
        return rewrite_calls(module, {"nn.batch_norm": _batch_norm})


def _batch_norm(call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, *parameters = call.args
    arrays = [scope.constant(parameter) for parameter in parameters]
    if call.attrs.training or any(array is None for array in arrays):
        return None
    gamma, beta, mean, variance = (np.asarray(array, "float64") for array in arrays)
    scale = 1.0 / np.sqrt(variance + float(call.attrs.epsilon))
    if call.attrs.scale:
        scale = scale * gamma
    shift = (beta if call.attrs.center else 0.0) - mean * scale
    shape = [1] * data.ty.ndim
    shape[int(call.attrs.axis) % data.ty.ndim] = -1
    dtype = str(data.ty.dtype)
    scaled = scope.emit(relax.op.multiply(data, constant(scale.reshape(shape), dtype)))
    shifted = scope.emit(relax.op.add(scaled, constant(shift.reshape(shape), dtype)))
    return relax.Tuple([shifted, parameters[2], parameters[3]])
