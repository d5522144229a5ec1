"""What constants alone determine, and numpy does not do for us, is compiled and run at compile time."""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import Op

from relaxc.service.passes.common.constants import constant, is_tensor_constant, numpy_dtype
from relaxc.service.passes.common.rewrite import static_shape, with_functions
from relaxc.service.passes.legalize.legalize import RULES, operators_left
from relaxc.service.passes.legalize.legalize_casts import CASTS
from relaxc.service.passes.legalize.legalize_extremes import from_infinity
from relaxc.service.passes.legalize.legalize_quantized import QUANTIZED

__all__ = ["LARGEST_BYTES", "EvaluateConstants"]

LARGEST_BYTES = 1 << 20
"""No value larger than this is computed, be it only on the way to a smaller one."""

HOST = "llvm"
"""A CPU without extensions: the values must not depend on the machine that compiles."""


@tvm.transform.module_pass(opt_level=0, name="EvaluateConstants")
class EvaluateConstants:
    """`take(resize2d(const), const) → const`, for whole subgraphs: position tables, masks, relative positions.

    After FoldConstants, for the operators that it has no numpy for. All of them are one function, which is
    compiled and run once; TVM's FoldConstant compiles one for each call, and knows no bound.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with the values that the rest of it reads as constants."""
        main = module["main"]
        known = _determined(main)
        wanted = _read_by_others(main, known)
        values = _evaluate([known[var] for var in known], wanted) if wanted else {}
        if not values:
            return module
        blocks = [_with_values(block, values) for block in main.body.blocks]
        body = relax.SeqExpr(blocks, main.body.body)
        function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        used = relax.analysis.remove_all_unused(function)
        changed = with_functions(module, {module.get_global_var("main"): used})
        return relax.transform.CanonicalizeBindings()(changed)


def _determined(main: relax.Function) -> dict[Any, relax.VarBinding]:
    """The bindings of dataflow blocks whose values are calls on constants and on each other, in order."""
    known: dict[Any, relax.VarBinding] = {}
    for block in main.body.blocks:
        for binding in block.bindings if isinstance(block, relax.DataflowBlock) else ():
            if isinstance(binding, relax.VarBinding) and _is_determined(binding.value, known):
                known[binding.var] = binding
    return known


def _is_determined(value: relax.Expr, known: dict[Any, Any]) -> bool:
    if is_tensor_constant(value) or isinstance(value, relax.ShapeExpr):
        return False
    if isinstance(value, relax.Tuple):
        return bool(value.fields) and all(_is_operand(field, known) for field in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return value.tuple_value in known
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, Op)
        and not str(value.op.name).startswith(("relax.call_", "relax.builtin", "relax.vm", "relax.memory"))
        and any(isinstance(arg.ty, relax.TensorType | relax.TupleType) for arg in value.args)
        and all(_is_operand(arg, known) for arg in value.args)
        and _is_small(value.ty)
    )


def _is_operand(arg: relax.Expr, known: dict[Any, Any]) -> bool:
    if isinstance(arg, relax.Tuple):
        return all(_is_operand(field, known) for field in arg.fields)
    if isinstance(arg, relax.ShapeExpr):
        return all(hasattr(dim, "value") for dim in arg.values)
    return arg in known if isinstance(arg, relax.Var) else is_tensor_constant(arg) or hasattr(arg, "value")


def _is_small(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(_is_small(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    if not all(hasattr(dim, "value") for dim in ty.shape.values):
        return False
    return math.prod(map(int, ty.shape.values)) * numpy_dtype(str(ty.dtype)).itemsize <= LARGEST_BYTES


def _read_by_others(main: relax.Function, known: dict[Any, relax.VarBinding]) -> list[Any]:
    """The known tensors that something unknown reads, or `main` returns."""
    read: dict[Any, None] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var) and expr in known:
            read[expr] = None

    for block in main.body.blocks:
        for binding in block.bindings:
            if binding.var not in known:
                relax.analysis.post_order_visit(binding.value, visit)
    relax.analysis.post_order_visit(main.body.body, visit)
    return [var for var in read if isinstance(var.ty, relax.TensorType) and static_shape(var) is not None]


def _evaluate(bindings: list[relax.VarBinding], wanted: list[Any]) -> dict[Any, relax.Expr]:
    """The values of `wanted`; none if an operator among the bindings has no kernel."""
    module, inputs = _as_function(bindings, wanted)
    with tvm.target.Target(HOST):
        module = relax.transform.DeadCodeElimination()(module)
        module = relax.transform.DecomposeOpsForInference()(module)
        module = from_infinity(relax.transform.LegalizeOps(RULES | QUANTIZED | CASTS)(module))
    if operators_left(module):
        return {}
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target(HOST)), tvm.cpu())
    results = machine["main"](*inputs)
    return {var: constant(result.numpy()) for var, result in zip(wanted, results, strict=True)}


def _as_function(bindings: list[relax.VarBinding], wanted: list[Any]) -> tuple[IRModule, list[Any]]:
    """A module whose `main` takes the large constants, so that TVM does not fold them one call at a time."""
    parameters: dict[Any, relax.Var] = {}

    def lifted(expr: relax.Expr) -> relax.Expr:
        if not is_tensor_constant(expr):
            return expr
        return parameters.setdefault(expr, relax.Var(f"c{len(parameters)}", expr.ty))

    values = [(b.var, tvm_ffi.structural_map(b.value, (tvm.ir.GenericConst, lifted))) for b in bindings]
    result = relax.Var("result", relax.TupleType([var.ty for var in wanted]))
    computed = [*(relax.VarBinding(*pair) for pair in values), relax.VarBinding(result, relax.Tuple(wanted))]
    body = relax.SeqExpr([relax.DataflowBlock(computed)], result)
    function = relax.Function(list(parameters.values()), body, result.ty)
    module = IRModule({"main": function.with_attr("global_symbol", "main")})
    return relax.transform.Normalize()(module), [expr.value for expr in parameters]


def _with_values(block: relax.BindingBlock, values: dict[Any, relax.Expr]) -> relax.BindingBlock:
    bindings = [
        relax.VarBinding(binding.var, values[binding.var]) if binding.var in values else binding
        for binding in block.bindings
    ]
    return relax.DataflowBlock(bindings) if isinstance(block, relax.DataflowBlock) else relax.BindingBlock(bindings)
