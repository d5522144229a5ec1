"""Calls that compute the same value are computed once."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from relaxc.service.passes.common.constants import array_of, is_tensor_constant, size_bytes
from relaxc.service.passes.common.rewrite import with_functions

__all__ = ["MergeEqualCalls"]

SMALL_BYTES = 64
"""Constants up to this size are equal by value, larger ones by identity."""


@tvm.transform.module_pass(opt_level=0, name="MergeEqualCalls")
class MergeEqualCalls:
    """`a = f(x); b = f(x)` → `a = f(x); b = a`, within a dataflow block, where every call is pure.

    Common-subexpression elimination. TVM's EliminateCommonSubexpr does the same and hashes every byte of every
    weight for it: half a second for BERT-base each time.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module without the second of two equal calls."""
        changed = {}
        for gvar, function in module.functions_items():
            if isinstance(function, relax.Function):
                merger = _Merger(module)
                merged = merger.visit_expr(function)
                if merger.merged:
                    changed[gvar] = merged
        return with_functions(module, changed)


@mutator
class _Merger(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self.merged = 0
        self.seen: dict[Any, list[tuple[relax.Call, relax.Var]]] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        outer, self.seen = self.seen, {}
        visited = super().visit_dataflow_block_(block)
        self.seen = outer
        return visited

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        var = self.visit_expr(binding.var)
        value = self.lookup_binding(var)
        if isinstance(var, relax.DataflowVar) and isinstance(value, relax.DataflowVar):
            self.set_var_remap(binding.var, value)
        elif isinstance(var, relax.DataflowVar) and isinstance(value, relax.Call):
            self.seen.setdefault(_key(value), []).append((value, var))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        for other, var in self.seen.get(_key(call), ()):
            if _equal(call, other):
                self.merged += 1
                return var
        return call


def _key(call: relax.Call) -> Any:
    return str(call.op), tuple(_operand(arg) for arg in call.args)


def _operand(arg: relax.Expr) -> Any:
    """A hashable value that is equal for equal operands."""
    if isinstance(arg, relax.Tuple):
        return tuple(map(_operand, arg.fields))
    if is_tensor_constant(arg):
        if size_bytes(arg.value) > SMALL_BYTES:
            return arg
        array = array_of(arg)
        return str(arg.ty.dtype), array.shape, array.tobytes()
    return arg if isinstance(arg, relax.Var | relax.GlobalVar) else str(arg)


def _equal(call: relax.Call, other: relax.Call) -> bool:
    """Whether calls with equal operands are equal: operator, attributes and explicit types too."""
    return (
        call.op.same_as(other.op)
        and tvm_ffi.structural_equal(call.attrs, other.attrs)
        and tvm_ffi.structural_equal(call.ty_args, other.ty_args, map_free_vars=False)
    )
