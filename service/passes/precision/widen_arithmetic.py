"""Arithmetic on 16-bit floats is computed in fp32; only contractions keep 16-bit operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Scope, rewrite_calls
from relaxc.service.passes.precision.dtypes import CONTRACTIONS, WIDENED, is_low, with_dtype

__all__ = ["WidenArithmetic", "WidenProducts"]


@tvm.transform.module_pass(opt_level=0, name="WidenArithmetic")
class WidenArithmetic:
    """`f(x₁₆) → cast₁₆(f(cast₃₂(x₁₆)))` for arithmetic, norms, softmax and reductions.

    With `contractions`, for those too (what `--precision fp32` asks of a 16-bit model); else they accumulate in
    fp32: `matmul(a₁₆, b₁₆) → cast₁₆(matmul(a₁₆, b₁₆, out_dtype=float32))`.
    CancelCasts then removes the pairs of casts between one operator and the next.
    """

    def __init__(self, *, contractions: bool) -> None:
        self.contractions = contractions

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with no 16-bit arithmetic in the operators that we know."""
        contraction = _in_fp32 if self.contractions else _accumulate_in_fp32
        rules = {**dict.fromkeys(WIDENED, _in_fp32), **dict.fromkeys(CONTRACTIONS, contraction)}
        return rewrite_calls(module, rules, rounds=1)


@tvm.transform.module_pass(opt_level=0, name="WidenProducts")
class WidenProducts:
    """`matmul(a₁₆, b₁₆) → matmul(cast₃₂(a₁₆), cast₃₂(b₁₆))`, of contractions that `narrow` does not say may stay."""

    def __init__(self, narrow: Callable[[relax.Call, Scope], bool]) -> None:
        self.narrow = narrow

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with fp32 operands of such contractions."""
        return rewrite_calls(module, dict.fromkeys(CONTRACTIONS, self._widen), rounds=1)

    def _widen(self, call: relax.Call, scope: Scope) -> relax.Expr | None:
        return None if self.narrow(call, scope) else _in_fp32(call, scope)


def _in_fp32(call: relax.Call, scope: Scope) -> relax.Expr | None:
    args = [_wide(arg, scope) for arg in call.args]
    if all(new.same_as(old) for new, old in zip(args, call.args, strict=True)):
        return None
    wide = scope.emit(with_dtype(call, args, "float32"))
    if isinstance(call.ty, relax.TupleType):
        fields = [scope.emit(relax.TupleGetItem(wide, i)) for i in range(len(call.ty.fields))]
        return relax.Tuple([_like(field, ty, scope) for field, ty in zip(fields, call.ty.fields, strict=True)])
    return relax.op.astype(wide, str(call.ty.dtype)) if is_low(call) else wide


def _like(field: relax.Expr, ty: Any, scope: Scope) -> relax.Expr:
    same = str(field.ty.dtype) == str(ty.dtype)
    return field if same else scope.emit(relax.op.astype(field, str(ty.dtype)))


def _wide(arg: relax.Expr, scope: Scope) -> relax.Expr:
    if isinstance(arg.ty, relax.TupleType):
        fields = scope.value(arg)
        if not isinstance(fields, relax.Tuple) or not any(is_low(field) for field in fields.fields):
            return arg
        return relax.Tuple([_wide(field, scope) for field in fields.fields])
    return scope.emit(relax.op.astype(arg, "float32")) if is_low(arg) else arg


def _accumulate_in_fp32(call: relax.Call, scope: Scope) -> relax.Expr | None:
    if not is_low(call) or not all(is_low(arg) for arg in call.args):
        return None
    return relax.op.astype(scope.emit(with_dtype(call, list(call.args), "float32")), str(call.ty.dtype))
