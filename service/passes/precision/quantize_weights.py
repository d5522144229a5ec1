"""`--weights`: the constant matrices of products, rounded to 4 or 8 bits in blocks of the depth."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.constants import Array, array_of, constant, is_tensor_constant
from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, static_shape
from relaxc.service.passes.report import OptimizeReport
from relaxc.service.passes.simplify.simplify_shapes import permutation
from relaxc.service.rounding import LEAST_ELEMENTS, RoundedWeight, Rounding, block_of, digest, quantized

__all__ = ["QuantizeWeights"]

_FLOATS = ("float32", "float16", "bfloat16")
_HARMLESS = frozenset({"relax.permute_dims", "relax.take", "relax.gather_nd", "relax.gather_elements"})
"""What turns a matrix for a product, and what looks rows up in it, which a reference does in the matrix as it was."""


@tvm.transform.module_pass(opt_level=0, name="QuantizeWeights")
class QuantizeWeights:
    """`A @ W` with a constant float32 W becomes `A @ dequantize(codes, scales)`, symmetric, as `service.rounding` says.

    W is one of the tensors that the model's file has (`known`, by digest), as it is there or turned: so a reference can
    be given the same. It runs before anything is folded into W. A W that is summed over both of its axes, or that other
    operators read, is kept: a reference has one tensor for all. What was rounded, by how much, and what was kept and
    why, is in the report.
    """

    def __init__(self, bits: int, known: frozenset[str], report: OptimizeReport) -> None:
        self.bits = bits
        self.known = known
        self.report = report

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with rounded weights; the same object if it has none."""
        readings: dict[str, set[int | None]] = {}
        rewrite_calls(module, {"matmul": partial(_noted, readings=readings)})
        _note_others(module, readings)
        done: dict[str, RoundedWeight] = {}
        kept: dict[str, str] = {}
        rule = partial(_product, bits=self.bits, known=self.known, readings=readings, done=done, kept=kept)
        module = rewrite_calls(module, {"matmul": rule})
        reasons = tuple(Counter(kept.values()).most_common())
        self.report.rounding = Rounding(self.bits, tuple(done.values()), len(kept), reasons)
        return module


@dataclass(frozen=True)
class _Weight:
    """The constant matrix that a product multiplies with, and the axis of it that is summed over."""

    array: Array
    name: str
    axis: int


def _weight(call: relax.Call, scope: Scope) -> _Weight | None:
    right = call.args[1]
    moved = scope.call(right, "relax.permute_dims")
    turned = moved is not None and permutation(moved) == [1, 0]
    array = scope.constant(moved.args[0] if moved is not None and turned else right)
    if array is None or array.ndim != 2 or array.dtype.name not in _FLOATS:
        return None
    return _Weight(array, digest(array), int(turned))


def _of_other_axes(expr: relax.Expr, scope: Scope) -> Array | None:
    """The constant of floats, as it is or turned, that is no matrix: a batch of them is multiplied one by one."""
    moved = scope.call(expr, "relax.permute_dims")
    array = scope.constant(moved.args[0] if moved is not None else expr)
    return array if array is not None and array.ndim > 2 and array.dtype.name in _FLOATS else None


def _noted(call: relax.Call, scope: Scope, *, readings: dict[str, set[int | None]]) -> None:
    weight = _weight(call, scope)
    if weight is not None:
        readings.setdefault(weight.name, set()).add(weight.axis)


def _note_others(module: IRModule, readings: dict[str, set[int | None]]) -> None:
    """Add None to the readings of weights that other operators compute with: a reference has one tensor for all."""

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call) or op_name(expr) in _HARMLESS:
            return
        for arg in expr.args[:1] if op_name(expr) == "relax.matmul" else expr.args:
            shape = (static_shape(arg) or ()) if is_tensor_constant(arg) else ()
            name = digest(array_of(arg)) if len(shape) == 2 and math.prod(shape) >= LEAST_ELEMENTS else ""
            if name in readings:
                readings[name].add(None)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)


def _product(
    call: relax.Call,
    scope: Scope,
    *,
    bits: int,
    known: frozenset[str],
    readings: dict[str, set[int | None]],
    done: dict[str, RoundedWeight],
    kept: dict[str, str],
) -> relax.Expr | None:
    weight = _weight(call, scope)
    if weight is None:
        other = _of_other_axes(call.args[1], scope)
        if other is not None:
            kept[digest(other)] = f"of {other.ndim} axes, where a matrix has two"
        return None
    array, name, axis = weight.array, weight.name, weight.axis
    block = block_of(array.shape[axis])
    reason = _reason(array, known=name in known, whole=block is not None, readings=readings[name])
    if reason or block is None:
        kept[name] = reason
        return None
    rows = np.ascontiguousarray(array if axis else array.T)
    codes, scales = quantized(rows.reshape(-1, block), bits)
    if name not in done:
        error = _error(rows.reshape(-1, block), codes, scales)
        done[name] = RoundedWeight(name, tuple(array.shape), axis, block, error)
    parts = (constant(codes), constant(scales), constant(np.int8(0)))
    steps = scope.emit(relax.op.dequantize(*parts, 0, "float32"))
    whole = scope.emit(relax.op.reshape(steps, rows.shape))
    return relax.op.matmul(call.args[0], scope.emit(relax.op.permute_dims(whole, [1, 0])))


def _reason(array: Array, *, known: bool, whole: bool, readings: set[int | None]) -> str:
    """Why a matrix is kept; nothing where it is not."""
    if array.dtype != np.float32:
        return str(array.dtype.name)
    if array.size < LEAST_ELEMENTS:
        return f"of under {LEAST_ELEMENTS} elements"
    if not known:
        return "computed from the file's tensors"
    if len(readings) > 1:
        return "read in several ways"
    if not np.isfinite(array).all():
        return "with values that are not finite"
    return "" if whole else "a depth of no whole blocks"


def _error(rows: Array, codes: Array, scales: Array) -> float:
    """The root mean square of the change, over that of the weights."""
    apart = codes * scales[:, None] - rows
    size = float(np.sqrt(np.mean(np.square(rows), dtype=np.float64)))
    return round(float(np.sqrt(np.mean(np.square(apart), dtype=np.float64))) / size, 5) if size else 0.0
