"""A value that is stored in 16 bits is widened by each kernel that reads it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from relaxc.service.passes.common.rewrite import Rule, Scope, op_name, rewrite_calls, static_shape, with_functions
from relaxc.service.passes.legalize.legalize_norms import OUT_FUSABLE, axes_of, layer_norm
from relaxc.service.passes.precision.dtypes import is_low, is_widening

__all__ = ["ReadLow"]


@tvm.transform.module_pass(opt_level=0, name="ReadLow")
class ReadLow:
    """Makes every reader of `cast₃₂(x₁₆)` one of `x₁₆`, before fusion.

    - `norm(cast₃₂(x₁₆)) → call_tir(norm of x₁₆)`: no producer is fused into a norm;
    - `y + cast₃₂(x₁₆) → call_tir(their sum)`, and products: the cast alone would be fused with what makes `x`, and its
      result be stored in fp32;
    - `w = cast₃₂(x₁₆); f(w); g(w) → f(cast₃₂(x₁₆)); g(cast₃₂(x₁₆))`.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with a cast for each reader."""
        module = rewrite_calls(module, _RULES, rounds=1)
        main = module.get_global_var("main")
        apart = _Apart(module)
        function = apart.visit_expr(module[main])
        return with_functions(module, {main: relax.analysis.remove_all_unused(function)} if apart.made else {})


def _layer_norm(call: relax.Call, scope: Scope) -> relax.Expr | None:
    return _of_low(partial(layer_norm, axes=axes_of(call), epsilon=float(call.attrs.epsilon)), call, scope)


def _rms_norm(call: relax.Call, scope: Scope) -> relax.Expr | None:
    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return topi.nn.rms_norm(data, weight, axes_of(call), float(call.attrs.epsilon))

    return _of_low(compute, call, scope)


def _of_low(norm: Any, call: relax.Call, scope: Scope) -> relax.Expr | None:
    """`norm` of the 16 bits that the call's first operand was widened from; None where it was not."""
    stored = _stored(call.args[0], scope)
    if not is_low(stored) or str(call.ty.dtype) != "float32":
        return None

    def compute(data: te.Tensor, *others: te.Tensor) -> te.Tensor:
        return norm(te.compute(data.shape, lambda *at: data(*at).astype("float32"), name="widened"), *others)

    name = op_name(call).removeprefix("relax.nn.")
    return scope.emit_te(compute, stored, *call.args[1:], name=name, attrs=OUT_FUSABLE)


def _joined(combine: Callable[[Any, Any], Any], call: relax.Call, scope: Scope) -> relax.Expr | None:
    """`combine` of two values of one shape, each read as it is stored; None where neither was widened."""
    stored = [_stored(arg, scope) for arg in call.args]
    shapes = [static_shape(arg) for arg in call.args]
    if shapes[0] is None or shapes[0] != shapes[1] or str(call.ty.dtype) != "float32":
        return None
    if not any(map(is_low, stored)):
        return None

    def compute(left: te.Tensor, right: te.Tensor) -> te.Tensor:
        return te.compute(
            left.shape, lambda *at: combine(left(*at).astype("float32"), right(*at).astype("float32")), name="joined"
        )

    return scope.emit_te(compute, *stored, name=op_name(call).removeprefix("relax."), attrs={})


def _stored(expr: relax.Expr, scope: Scope) -> relax.Expr:
    """What `expr` was widened from, else itself."""
    value = scope.value(expr)
    return value.args[0] if is_widening(value) else expr


_RULES: dict[str, Rule] = {
    "nn.layer_norm": _layer_norm,
    "nn.rms_norm": _rms_norm,
    "add": partial(_joined, operator.add),
    "multiply": partial(_joined, operator.mul),
}


@mutator
class _Apart(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    """Gives each call that reads a widened value a widening of its own."""

    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self.made = 0
        self._taken: set[Any] = set()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        args = [self._own(arg) for arg in call.args]
        if all(new.same_as(old) for new, old in zip(args, call.args, strict=True)):
            return call
        return self.builder_.normalize(relax.Call(call.op, args, call.attrs, call.ty_args))

    def _own(self, arg: relax.Expr) -> relax.Expr:
        """The operand, or a widening of its own where another call has that one already."""
        if isinstance(arg, relax.Tuple):
            fields = [self._own(field) for field in arg.fields]
            same = all(new.same_as(old) for new, old in zip(fields, arg.fields, strict=True))
            return arg if same else relax.Tuple(fields)
        bound = self.lookup_binding(arg) if isinstance(arg, relax.Var) else None
        if bound is None or not is_widening(bound) or is_low(arg):
            return arg
        if arg not in self._taken:
            self._taken.add(arg)
            return arg
        self.made += 1
        return self.builder_.emit(relax.op.astype(bound.args[0], str(arg.ty.dtype)))
