"""torch's softmax that gives 0 where everything is masked becomes one kernel."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax, te, tirx

from relaxc.schedules.ir.roles import SAFE_SHIFT, is_safe_softmax
from relaxc.service.passes.common.rewrite import Scope, rewrite_calls, scalar_of

__all__ = ["RecognizeSafeSoftmax", "safe_softmaxes"]


@tvm.transform.module_pass(opt_level=0, name="RecognizeSafeSoftmax")
class RecognizeSafeSoftmax:
    """`where(¬any(x ≠ -∞), 0, softmax(x)) → safe_softmax(x)`, over the last axis.

    This is what scaled_dot_product_attention decomposes to. As written it takes a second reduction over the
    scores. `safe_softmax` takes none: its row maximum starts at the lowest finite number, so that a row of -∞
    has exponentials of 0 and the sum 0, in whose place 1 is taken. NaN stays NaN.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with this chain as one call_tir."""
        return rewrite_calls(module, {"where": _where})


def _where(call: relax.Call, scope: Scope) -> relax.Expr | None:
    masked, zero, value = call.args
    softmax = scope.call(value, "relax.nn.softmax")
    if softmax is None or scalar_of(scope, zero) != 0.0 or call.ty.shape is None or str(call.ty.dtype) == "float64":
        return None
    scores = softmax.args[0]
    if int(softmax.attrs.axis) % scores.ty.ndim != scores.ty.ndim - 1 or not _all_infinite(masked, scores, scope):
        return None
    return scope.emit_te(_safe_softmax, scores, name="safe_softmax", attrs={"op_pattern": 4})


def _all_infinite(masked: relax.Expr, scores: relax.Expr, scope: Scope) -> bool:
    """Whether `masked` says that no score of a row is above -∞: `¬any`, or `any == 0`."""
    if (found := scope.call(masked, "relax.logical_not")) is not None:
        return _any_finite(found.args[0], scores, scope)
    found = scope.call(masked, "relax.equal")
    return found is not None and scalar_of(scope, found.args[1]) == 0.0 and _any_finite(found.args[0], scores, scope)


def _any_finite(expr: relax.Expr, scores: relax.Expr, scope: Scope) -> bool:
    """Whether `expr` is the maximum of the row's flags as integers, cast or not."""
    if (found := scope.call(expr, "relax.astype")) is not None and str(found.ty.dtype) == "bool":
        expr = found.args[0]
    found = scope.call(expr, "relax.max")
    flags = None if found is None or not _over_last_axis(found) else scope.call(found.args[0], "relax.astype")
    return flags is not None and str(flags.args[0].ty.dtype) == "bool" and _finite(flags.args[0], scores, scope)


def _finite(expr: relax.Expr, scores: relax.Expr, scope: Scope) -> bool:
    """Whether `expr` is `scores > -∞`, or says so otherwise."""
    if (negated := scope.call(expr, "relax.logical_not")) is not None:
        found = scope.call(negated.args[0], "relax.equal")
    else:
        found = scope.call(expr, "relax.greater", "relax.not_equal")
    return found is not None and found.args[0].same_as(scores) and scalar_of(scope, found.args[1]) == float("-inf")


def _over_last_axis(reduction: relax.Call) -> bool:
    rank = reduction.args[0].ty.ndim
    axes = [int(axis) % rank for axis in reduction.attrs.axis or ()]
    return bool(reduction.attrs.keepdims) and axes == [rank - 1]


def _safe_softmax(scores: te.Tensor) -> te.Tensor:
    dtype, width = "float32", scores.shape[-1]
    rows = scores.shape[:-1]
    across, along = te.reduce_axis((0, width), "k"), te.reduce_axis((0, width), "k")
    top = te.compute(
        rows,
        lambda *row: te.max(scores(*row, across).astype(dtype), axis=across),
        name="safe_softmax_maxelem",
        attrs=SAFE_SHIFT,
    )
    power = te.compute(
        scores.shape,
        lambda *at: tirx.exp(scores(*at).astype(dtype) - top(*at[:-1])),
        name="safe_softmax_exp",
    )
    total = te.compute(rows, lambda *row: te.sum(power(*row, along), axis=along), name="safe_softmax_expsum")

    def inverse(*row: Any) -> Any:
        by = total(*row)
        return tirx.const(1, dtype) / tirx.Select(by == tirx.const(0, dtype), tirx.const(1, dtype), by)

    scale = te.compute(rows, inverse, name="safe_softmax_scale")
    return te.compute(
        scores.shape, lambda *at: (power(*at) * scale(*at[:-1])).astype(str(scores.dtype)), name="safe_softmax_norm"
    )


def safe_softmaxes(module: IRModule) -> frozenset[str]:
    """Return the names under which a module has such kernels."""
    functions = [(var, func) for var, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
    return frozenset(str(var.name_hint) for var, func in functions if is_safe_softmax(func))
