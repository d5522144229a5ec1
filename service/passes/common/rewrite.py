"""Rewriting of calls: the one walk over Relax functions that our graph passes are made of."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from tvm import IRModule, relax
from tvm.ir import Op
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import renew_defs
from tvm.sym import Analyzer

from relaxc.schedules.strict import made_up_for
from relaxc.service.passes.common.constants import Array, array_of, is_tensor_constant
from relaxc.service.passes.common.readers import Readers

__all__ = [
    "Rule",
    "Scope",
    "dims_equal",
    "dims_of",
    "is_tensor_constant",
    "op_name",
    "rewrite_calls",
    "rows_of",
    "scalar_of",
    "static_shape",
    "with_functions",
]

MAX_ROUNDS = 20
"""A set of rules that still fires after this many walks is taken to be going in circles."""


class Scope:
    """What a rule may ask about the code around a call, and how it adds code before it."""

    def __init__(self, walker: Any, function: relax.Function) -> None:
        self._walker = walker
        self._function = function
        self._uses: dict[Any, int] | None = None
        self._readers: Readers | None = None
        self.bound: relax.Var | None = None
        """The variable that the call being rewritten is bound to, as the function has it."""

    def value(self, expr: relax.Expr) -> relax.Expr:
        """Return the expression that `expr` stands for: variables and fields of tuples are followed to what they
        are.
        """
        while True:
            if isinstance(expr, relax.Var):
                bound = self._walker.lookup_binding(expr)
                if bound is None:
                    return expr
                expr = bound
            elif isinstance(expr, relax.TupleGetItem) and isinstance(self.value(expr.tuple_value), relax.Tuple):
                expr = self.value(expr.tuple_value).fields[int(expr.index)]
            else:
                return expr

    def call(self, expr: relax.Expr, *names: str) -> relax.Call | None:
        """Return the call to one of the operators `names` that `expr` stands for, if it is one."""
        value = self.value(expr)
        return value if op_name(value) in names else None

    def has_attribute(self, call: relax.Call, name: str) -> bool:
        """Return whether the PrimFunc that is called has the attribute."""
        attributes = self._walker.builder_.get()[call.args[0]].attrs
        return attributes is not None and name in attributes

    def constant(self, expr: relax.Expr) -> Array | None:
        """Return the value of a tensor constant, if `expr` stands for one."""
        value = self.value(expr)
        return array_of(value) if is_tensor_constant(value) else None

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind `expr` to a new variable before the call that is rewritten."""
        return self._walker.builder_.emit(expr)

    @property
    def builder(self) -> relax.BlockBuilder:
        """Return what adds code before the call that is rewritten."""
        return self._walker.builder_

    def emit_te(self, compute: Callable[..., Any], *args: relax.Expr, name: str, attrs: Mapping[str, Any]) -> relax.Var:
        """Bind a call of the PrimFunc that `compute` describes in tensor expressions."""
        call = self._walker.builder_.call_te(compute, *args, primfunc_name_hint=name, primfunc_attrs=dict(attrs))
        return self._walker.builder_.emit(call)

    def emit_tir(self, func: Any, args: Sequence[Any], made: relax.TensorType, name: str) -> relax.Var:
        """Bind a call of a PrimFunc of the function's own sizes, which are replaced by others: result `made`."""
        gvar = self._walker.builder_.add_func(renew_defs(func), name)
        return self._walker.builder_.emit(relax.call_tir(gvar, args, made))

    def uses(self, expr: relax.Expr) -> int:
        """Return how often `expr` is read; 0 where this walk cannot know."""
        if self._uses is None:
            self._uses = _count_uses(self._function)
        return self._uses.get(expr, 0) if isinstance(expr, relax.Var) else 0

    @property
    def readers(self) -> Readers:
        """Return who reads each variable of the function."""
        if self._readers is None:
            self._readers = Readers(self._function)
        return self._readers

    def used_once(self, expr: relax.Expr) -> bool:
        """Return whether nothing else reads `expr`; False where this walk cannot know."""
        return self.uses(expr) == 1


Rule = Callable[[relax.Call, Scope], relax.Expr | None]
"""Takes a call whose arguments are rewritten already; gives its replacement of the same dtype and rank, or None."""


def op_name(expr: relax.Expr | None) -> str:
    """Return the name of the operator that `expr` calls, or the empty string."""
    return str(expr.op.name) if isinstance(expr, relax.Call) and isinstance(expr.op, Op) else ""


def static_shape(expr: relax.Expr) -> tuple[int, ...] | None:
    """Return the sizes of a tensor, or None where one of them is symbolic or unknown."""
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or not all(hasattr(dim, "value") for dim in shape):
        return None
    return tuple(int(dim) for dim in shape)


def dims_of(expr: relax.Expr) -> tuple[Any, ...] | None:
    """Return the sizes of a tensor whose shape is known, as ints where they are, else as expressions."""
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return tuple(int(dim) if hasattr(dim, "value") else dim for dim in shape)


def rows_of(expr: relax.Expr) -> int | None:
    """Return the rows of all leading axes of a tensor, 0 where the call decides; None where there are none at all.

    None, too, of one without a shape of two axes or more, or with a symbolic number of columns.
    """
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or len(shape) < 2 or not hasattr(shape[-1], "value"):
        return None
    known = [int(dim) if hasattr(dim, "value") else None for dim in list(shape)[:-1]]
    if 0 in known:
        return None
    return prod(size or 0 for size in known)


def dims_equal(left: Any, right: Any) -> bool:
    """Return whether two lists of sizes are provably equal; symbolic sizes are simplified first."""
    analyzer = Analyzer()
    return len(left) == len(right) and all(analyzer.can_prove_equal(a, b) for a, b in zip(left, right, strict=True))


def scalar_of(scope: Scope, expr: relax.Expr) -> float | None:
    """Return the number in a constant whose elements are all equal, or None."""
    array = scope.constant(expr)
    if array is None or array.size == 0 or (array.size > 1 and not (array == array.flat[0]).all()):
        return None
    number: float = array.flat[0].item()  # of integers an int, as they may have more digits than a float
    return number


def rewrite_calls(module: IRModule, rules: Mapping[str, Rule], *, rounds: int = MAX_ROUNDS) -> IRModule:
    """Return the module with each call to an operator in `rules` replaced by what its rule gives, until none fires.

    The same object where none does.
    `rules` are by operator name without `relax.`.
    Functions marked Primitive are left alone. Raise TypeError where a rule changes a dtype or a rank:
    that is a bug in the rule.
    """
    table = {f"relax.{name}": rule for name, rule in rules.items()}
    for _ in range(rounds):
        changed = {}
        for gvar, function in module.functions_items():
            if not isinstance(function, relax.Function) or _is_primitive(function) or not _calls(function, table):
                continue
            walker = _Walker(module, table, function)
            rewritten = walker.visit_expr(function)
            if walker.fired:
                changed[gvar] = relax.analysis.remove_all_unused(rewritten)
                changed |= walker.added(module)
        if not changed:
            break
        module = with_functions(module, changed)
    else:
        if rounds == MAX_ROUNDS:
            made_up_for(f"the rules for {', '.join(rules)} still fire after {rounds} walks")
    return module


def with_functions(module: IRModule, functions: Mapping[Any, Any]) -> IRModule:
    """Return the module with these functions in the place of those of their names; the same object if there are
    none.
    """
    if not functions:
        return module
    module = module.clone()
    for gvar, function in functions.items():
        module.update_func(gvar, function)
    return module


def _is_primitive(function: relax.Function) -> bool:
    return bool(function.attrs and function.attrs.get("Primitive", 0))


def _values(function: relax.Function) -> Iterator[relax.Expr]:
    """What the variables of a function are bound to, nested branches included, and its result."""
    pending = [function.body]
    while pending:
        body = pending.pop()
        for block in body.blocks:
            for binding in block.bindings:
                yield binding.value
                if isinstance(binding.value, relax.If):
                    pending += [binding.value.true_branch, binding.value.false_branch]
        yield body.body


def _calls(function: relax.Function, names: Container[str]) -> bool:
    return any(op_name(value) in names for value in _values(function))


def _count_uses(function: relax.Function) -> dict[Any, int]:
    uses: dict[Any, int] = {}

    def count(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            uses[expr] = uses.get(expr, 0) + 1
        elif isinstance(expr, relax.Call | relax.Tuple):
            for child in expr.args if isinstance(expr, relax.Call) else expr.fields:
                count(child)
        elif isinstance(expr, relax.TupleGetItem):
            count(expr.tuple_value)

    for value in _values(function):
        count(value)
    return uses


@mutator
class _Walker(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    def __init__(self, module: IRModule, rules: Mapping[str, Rule], function: relax.Function) -> None:
        super().__init__(module)
        self.rules = rules
        self.scope = Scope(self, function)
        self.fired = 0

    def added(self, module: IRModule) -> dict[Any, Any]:
        """Return the functions that rules added to the module."""
        known = {str(gvar.name_hint) for gvar in module.get_global_vars()}
        functions = self.builder_.get().functions_items()
        return {gvar: function for gvar, function in functions if str(gvar.name_hint) not in known}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if not self.fired and self._stays(binding.value):
            self.builder_.emit_normalized(binding)
            return
        self.scope.bound = binding.var
        super().visit_var_binding_(binding)

    def _stays(self, value: relax.Expr) -> bool:
        """Whether it has no call for a rule. Until one fires, what it reads is what it was: it need not be visited."""
        return isinstance(value, relax.Call) and isinstance(value.op, Op) and str(value.op.name) not in self.rules

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        rule = self.rules.get(op_name(call))
        replacement = rule(call, self.scope) if rule else None
        if replacement is None:
            return call
        self.fired += 1
        replacement = self.builder_.normalize(replacement)
        _require_same_type(call, replacement)
        return replacement


def _require_same_type(old: relax.Expr, new: relax.Expr) -> None:
    if not isinstance(old.ty, relax.TensorType):
        return
    if str(old.ty.dtype) != str(new.ty.dtype) or old.ty.ndim != new.ty.ndim:
        raise TypeError(f"a rule for {op_name(old)} changed {old.ty} into {new.ty}")
