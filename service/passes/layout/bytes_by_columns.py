"""Products of bytes and of 8-bit floats with constant weights, which the tensor cores read by columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.schedules.cuda.gemm.compute import by_columns, takes_bytes
from relaxc.service.passes.common.constants import array_of, constant
from relaxc.service.passes.common.rewrite import Scope, is_tensor_constant, rewrite_calls
from relaxc.service.passes.precision.dtypes import BYTES, FLOAT8

__all__ = ["BytesByColumns"]


@tvm.transform.module_pass(opt_level=0, name="BytesByColumns")
class BytesByColumns:
    """`C = A @ B` of 8 bits, summed in int32 or fp32, with a constant `B[K, N]` reads it as `[N, K]`, turned here.

    wgmma turns 16-bit operands while it reads them, and no bytes.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with turned weights; the same object if it has none."""
        return rewrite_calls(module, {"matmul": _turned})


def _turned(call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, weight = call.args[0], scope.value(call.args[1])
    dtypes = str(data.ty.dtype), str(weight.ty.dtype)
    if not is_tensor_constant(weight) or weight.ty.ndim != 2 or data.ty.ndim < 2:
        return None
    of_bytes = str(call.ty.dtype) == "int32" and set(dtypes) <= set(BYTES)
    if not of_bytes and (str(call.ty.dtype), *dtypes) != ("float32", FLOAT8, FLOAT8):
        return None
    array = array_of(weight)
    if not takes_bytes(*array.shape):
        return None
    return scope.emit_te(by_columns, data, constant(np.ascontiguousarray(array.T)), name="matmul", attrs={})
