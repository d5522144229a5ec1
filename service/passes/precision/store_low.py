"""What is cast to 16 bits is cast where it is made; what `--precision` narrows is stored so, for other readers too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from relaxc.schedules.strict import made_up_for
from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, with_functions
from relaxc.service.passes.precision.dtypes import CONTRACTIONS, is_low, is_widening

__all__ = ["StoreLow", "rounded_at_definitions"]

HOISTED = (
    "permute_dims", "reshape", "expand_dims", "squeeze", "flatten", "concat", "nn.max_pool1d",
    "nn.max_pool2d", "nn.max_pool3d",
)  # fmt: skip
MAX_ROUNDS = 12
"""As many as there are movements in a row between an operator and the contraction that reads it."""


@tvm.transform.module_pass(opt_level=0, name="StoreLow")
class StoreLow:
    """Rounds where a value is made, so that the cast joins its kernel.

    `cast₁₆(move(x₃₂)) → move(cast₁₆(x₃₂))`, until the cast stands at the operator that computes `x`. Other readers of
    `x` read it as it is: the model has it in float32 for them (see CancelCasts).

    Where the user `asked` for operands in 16 bits, one copy is kept of what a contraction reads so: `y = f(…);
    matmul(cast₁₆(y), W); g(y)` becomes `c = cast₁₆(f(…)); matmul(c, W); g(cast₃₂(c))`. What no contraction reads (a
    pre-norm residual stream, say) stays in fp32. So do the model's outputs.
    """

    def __init__(self, *, asked: bool = False) -> None:
        self.asked = asked

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with casts at the definitions."""
        for _ in range(MAX_ROUNDS):
            moved = rewrite_calls(_round_at_definitions(module) if self.asked else module, {"astype": _hoist})
            if moved is module:
                break
            module = moved
        else:
            made_up_for(f"casts still move after {MAX_ROUNDS} rounds")
        return module


def _hoist(call: relax.Call, scope: Scope) -> relax.Expr | None:
    if not is_low(call) or str(call.args[0].ty.dtype) != "float32":
        return None
    dtype = str(call.ty.dtype)
    table = scope.call(call.args[0], "relax.take")
    if table is not None and scope.constant(table.args[0]) is not None:
        narrow = scope.emit(relax.op.astype(table.args[0], dtype))
        return relax.Call(table.op, [narrow, *table.args[1:]], table.attrs)
    move = scope.call(call.args[0], *(f"relax.{name}" for name in HOISTED))
    if move is None:
        return None
    data = move.args[0]
    if isinstance(data.ty, relax.TupleType):
        fields = scope.value(data)
        if not isinstance(fields, relax.Tuple):
            return None
        narrow = relax.Tuple([scope.emit(relax.op.astype(field, dtype)) for field in fields.fields])
    else:
        narrow = scope.emit(relax.op.astype(data, dtype))
    return relax.Call(move.op, [narrow, *move.args[1:]], move.attrs)


def _round_at_definitions(module: IRModule) -> IRModule:
    changed = {}
    for gvar, function in module.functions_items():
        rounded = _shared(function) if isinstance(function, relax.Function) else {}
        if rounded:
            changed[gvar] = rounded_at_definitions(module, function, rounded)
    return with_functions(module, changed)


def rounded_at_definitions(module: IRModule, function: relax.Function, rounded: dict[Any, str]) -> relax.Function:
    """Return the function with these variables in the 16-bit dtype that each has there, for all that read them."""
    return relax.analysis.remove_all_unused(_Rounder(module, rounded).visit_expr(function))


def _shared(function: relax.Function) -> dict[Any, str]:
    """The fp32 variables that one call casts to 16 bits for a contraction and another reads in fp32, with the dtype.

    Not what was rounded already: it is that value, widened.
    """
    values = relax.analysis.get_var2val(function)
    casts: dict[Any, str] = {}
    others: set[Any] = set()

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call):
            return
        if op_name(expr).removeprefix("relax.") in CONTRACTIONS:
            for cast in filter(_is_narrowing, _moved(expr.args, values)):
                casts.setdefault(cast.args[0], str(cast.ty.dtype))
        if not _is_narrowing(expr):
            for arg in expr.args:
                others.update(arg.fields if isinstance(arg, relax.Tuple) else [arg])

    relax.analysis.post_order_visit(function, visit)
    return {
        var: dtype
        for var, dtype in casts.items()
        if isinstance(var, relax.Var) and var in others and var in values and not is_widening(values[var])
    }


def _moved(args: Any, values: Any) -> Iterator[Any]:
    """What the arguments are bound to, moves aside."""
    pending = list(args)
    while pending:
        expr = pending.pop()
        value = values.get(expr) if isinstance(expr, relax.Var) else expr
        if isinstance(value, relax.Tuple):
            pending.extend(value.fields)  # `+=` would make it an array of TVM
        elif op_name(value).removeprefix("relax.") in HOISTED:
            pending.append(value.args[0])
        else:
            yield value


def _is_narrowing(value: Any) -> bool:
    return op_name(value) == "relax.astype" and is_low(value) and str(value.args[0].ty.dtype) == "float32"


@mutator
class _Rounder(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    """Puts `c = cast₁₆(y); w = cast₃₂(c)` after each `y` of `rounded`, and has calls read `w`."""

    def __init__(self, module: IRModule, rounded: dict[Any, str]) -> None:
        super().__init__(module)
        self.rounded = rounded
        self.wide: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        dtype = self.rounded.get(binding.var)
        if dtype is None:
            return
        var = self.visit_expr(binding.var)
        narrow = self.builder_.emit(relax.op.astype(var, dtype))
        self.wide[var] = self.builder_.emit(relax.op.astype(narrow, "float32"))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.astype" and is_low(call):
            return call
        args = [self._widened(arg) for arg in call.args]
        if all(new.same_as(old) for new, old in zip(args, call.args, strict=True)):
            return call
        return self.builder_.normalize(relax.Call(call.op, args, call.attrs, call.ty_args))

    def _widened(self, arg: relax.Expr) -> relax.Expr:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._widened(field) for field in arg.fields])
        return self.wide.get(arg, arg) if isinstance(arg, relax.Var) else arg
