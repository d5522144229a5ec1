"""Weights leave the module: each large constant becomes a field of one last parameter of `main`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from relaxc.service.passes.common.constants import Array, array_of, is_tensor_constant, size_bytes

__all__ = ["SMALL_BYTES", "LiftWeights"]

SMALL_BYTES = 64
"""A constant up to this size stays in the executable: a scalar, a short vector."""


@tvm.transform.module_pass(opt_level=0, name="LiftWeights")
class LiftWeights:
    """`main(x) { … const … }` becomes `main(x, weights) { w = weights[0]; … w … }`. What has no elements is allocated:
    TVM writes such a constant and cannot read it.

    `weights` is filled with name → tensor, in the order of the tuple: the order of first use, so that equal
    modules give equal names. Equal constants become one weight. `num_input` tells TVM which parameters are inputs.
    """

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = weights

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module whose `main` takes its weights."""
        main = module["main"]
        collected = _Collected(main)
        names = [f"w{index:04d}" for index in range(len(collected.tensors))]
        self.weights.update(zip(names, collected.tensors, strict=True))
        parameter = relax.Var("weights", relax.TupleType([constant.ty for constant in collected.constants]))
        fields = [relax.Var(name, constant.ty) for name, constant in zip(names, collected.constants, strict=True)]
        reads = [relax.VarBinding(var, relax.TupleGetItem(parameter, i)) for i, var in enumerate(fields)]
        variables = {constant: fields[index] for constant, index in collected.index_of.items()}
        for index, constant in enumerate(collected.empty):
            variables[constant] = relax.Var(f"empty{index}", constant.ty)
            made = relax.op.builtin.alloc_tensor(constant.ty.shape, str(constant.ty.dtype), 0)
            reads.append(relax.VarBinding(variables[constant], made))
        lifted = _Lifter(module, variables).visit_expr(main)
        body = relax.SeqExpr([relax.BindingBlock(reads), *lifted.body.blocks], lifted.body.body)
        function = relax.Function([*lifted.params, parameter], body, lifted.ret_ty, lifted.is_pure, lifted.attrs)
        module = module.clone()
        module.update_func(module.get_global_var("main"), function.with_attr("num_input", len(main.params)))
        return relax.transform.Normalize()(module)


class _Collected:
    """The large constants of a function in order of first use, equal ones once."""

    def __init__(self, function: relax.Function) -> None:
        self.constants: list[relax.Expr] = []
        self.empty: dict[Any, None] = {}
        self.index_of: dict[Any, int] = {}
        self._alike: dict[Any, list[int]] = {}
        relax.analysis.post_order_visit(function, self._visit)

    @property
    def tensors(self) -> list[Any]:
        return [constant.value for constant in self.constants]

    def _visit(self, expr: relax.Expr) -> None:
        if not is_tensor_constant(expr) or expr in self.index_of:
            return
        if (size := size_bytes(expr.value)) <= SMALL_BYTES:
            if not size:
                self.empty[expr] = None
            return
        raw = np.ascontiguousarray(array_of(expr)).reshape(-1).view("uint8")
        alike = self._alike.setdefault((str(expr.ty.dtype), tuple(expr.value.shape), _sample(raw)), [])
        for index in alike:
            if np.array_equal(raw, np.ascontiguousarray(array_of(self.constants[index])).reshape(-1).view("uint8")):
                self.index_of[expr] = index
                return
        alike.append(len(self.constants))
        self.index_of[expr] = len(self.constants)
        self.constants.append(expr)


def _sample(raw: Array) -> bytes:
    """Some of the bytes, so that weights that differ are seldom compared whole."""
    return raw[:: max(1, raw.size // 61)].tobytes()


@mutator
class _Lifter(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    def __init__(self, module: IRModule, variables: dict[Any, Any]) -> None:
        super().__init__(module)
        self.variables = variables

    def visit_generic_const_(self, constant: relax.Expr) -> relax.Expr:
        return self.variables.get(constant, constant)
