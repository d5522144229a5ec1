"""`--weights`: the constant matrices of products, rounded to 4 or 8 bits in blocks of the depth."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from service.passes.common.constants import Array, constant
from service.passes.common.rewrite import Scope, rewrite_calls
from service.passes.report import OptimizeReport
from service.passes.simplify.simplify_shapes import permutation
from service.rounding import LEAST_ELEMENTS, RoundedWeight, Rounding, block_of, digest, quantized

__all__ = ["QuantizeWeights"]


@tvm.transform.module_pass(opt_level=0, name="QuantizeWeights")
class QuantizeWeights:
    """`A @ W` with a constant float32 W becomes `A @ dequantize(codes, scales)`, symmetric, as `service.rounding` says.

    W is one of the tensors that the model's file has (`known`, by digest), as it is there or turned: so a reference can
    be given the same. It runs before anything is folded into W. What was rounded, and by how much, is in the report.
    """

    def __init__(self, bits: int, known: frozenset[str], report: OptimizeReport) -> None:
        self.bits = bits
        self.known = known
        self.report = report

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with rounded weights; the same object if it has none."""
        done: dict[str, RoundedWeight] = {}
        kept: set[str] = set()
        rule = partial(_product, bits=self.bits, known=self.known, done=done, kept=kept)
        module = rewrite_calls(module, {"matmul": rule})
        self.report.rounding = Rounding(self.bits, tuple(done.values()), len(kept))
        return module


def _product(
    call: relax.Call, scope: Scope, *, bits: int, known: frozenset[str], done: dict[str, RoundedWeight], kept: set[str]
) -> relax.Expr | None:
    data, right = call.args
    moved = scope.call(right, "relax.permute_dims")
    turned = moved is not None and permutation(moved) == [1, 0]
    array = scope.constant(moved.args[0] if moved is not None and turned else right)
    if array is None or array.ndim != 2 or array.dtype != np.float32:
        return None
    name, axis = digest(array), 1 if turned else 0
    block = block_of(array.shape[axis])
    before = done.get(name)
    if array.size < LEAST_ELEMENTS or block is None or name not in known or (before and before.axis != axis):
        kept.add(name)
        return None
    rows = np.ascontiguousarray(array if turned else array.T)
    codes, scales = quantized(rows.reshape(-1, block), bits)
    if before is None:
        error = _error(rows.reshape(-1, block), codes, scales)
        done[name] = RoundedWeight(name, tuple(array.shape), axis, block, error)
    parts = (constant(codes), constant(scales), constant(np.int8(0)))
    steps = scope.emit(relax.op.dequantize(*parts, 0, "float32"))
    whole = scope.emit(relax.op.reshape(steps, rows.shape))
    return relax.op.matmul(data, scope.emit(relax.op.permute_dims(whole, [1, 0])))


def _error(rows: Array, codes: Array, scales: Array) -> float:
    """The root mean square of the change, over that of the weights."""
    apart = codes * scales[:, None] - rows
    size = float(np.sqrt(np.mean(np.square(rows), dtype=np.float64)))
    return round(float(np.sqrt(np.mean(np.square(apart), dtype=np.float64))) / size, 5) if size else 0.0
