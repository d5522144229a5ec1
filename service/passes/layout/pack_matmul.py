"""Matrix products with constant weights: the weights packed into panels at compile time, as the plan says."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.schedules.cpu import planning
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Matmul
from relaxc.schedules.plan import Planner
from relaxc.service.passes.common.constants import array_of, constant
from relaxc.service.passes.common.readers import pattern_of
from relaxc.service.passes.common.rewrite import Scope, is_tensor_constant, rewrite_calls, rows_of

__all__ = ["PackMatmul"]

_MANY_ROWS = 4
"""Rows from which A is widened once before the product, and not again for each panel."""


@tvm.transform.module_pass(opt_level=0, name="PackMatmul")
class PackMatmul:
    """`C = A @ B` with a constant `B[K, N]` computes from panels `P[N/t, K, t]`, t whole vectors of sums.

    The element types are those that the template multiplies: floats summed in float32, bytes summed in int32. A panel
    is read from start to end for each tile of rows, with no other stride than one. The planner chooses t and the tiles.
    An odd depth is filled up with zeros where an instruction takes pairs.
    """

    def __init__(self, cpu: Cpu, planner: Planner | None = None) -> None:
        self.cpu, self.planner = cpu, planner or planning.Defaults(cpu)

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with packed products; the same object if it has none."""
        return rewrite_calls(module, {"matmul": partial(_packed, self.cpu, self.planner)})


def _packed(cpu: Cpu, planner: Planner, call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, weight = call.args
    weight = scope.value(weight)
    rows = rows_of(data)
    if not is_tensor_constant(weight) or weight.ty.ndim != 2 or rows is None:
        return None
    dtypes = planning.matmul_dtypes(str(data.ty.dtype), str(weight.ty.dtype), str(call.ty.dtype))
    array = array_of(weight)
    if dtypes is None or not array.size:
        return None
    many = not rows or rows >= _MANY_ROWS
    if many and array.shape[0] % 2 and planning.has_pairs(cpu, dtypes["operands"]):
        data = scope.emit(relax.op.nn.pad(data, [0] * (2 * data.ty.ndim - 1) + [1]))
        array = np.pad(array, ((0, 1), (0, 0)))
    depth, columns = array.shape
    plan = planner.plan(Matmul(m=rows, n=columns, k=depth, **dtypes))
    packed = constant(planning.arranged(plan, array))
    if many and str(data.ty.dtype) != plan.operator.accumulate and planning.taken_at_once(plan) == 1:
        data = scope.emit(relax.op.astype(data, plan.operator.accumulate))
    return scope.emit_te(planning.computation(plan), data, packed, name="matmul", attrs=pattern_of(rows))
