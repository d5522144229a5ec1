"""What kernels keep in global memory between their statements is allocated with the rest, and given to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import GlobalVar
from tvm.relax.expr_functor import PyExprMutator, mutator

from relaxc.schedules.ir import tir
from relaxc.service.passes.common.rewrite import with_functions

__all__ = ["LiftWorkspaces"]


@tvm.transform.module_pass(opt_level=0, name="LiftWorkspaces")
class LiftWorkspaces:
    """`f(x, y)` whose root block allocates `w` becomes `w = R.builtin.alloc_tensor(…); f(x, y, w)`.

    After CallTIRRewrite, before memory is planned. A CUDA kernel cannot allocate global memory, and what TVM's host
    code allocates between two kernels no plan knows. Leave a PrimFunc unchanged if what it allocates has a size that
    its arguments do not tell, or if it is called in another way than by name.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module whose kernels take their workspaces as their last buffers."""
        lifted = {
            var: _Lifted(var, func)
            for var, func in module.functions_items()
            if isinstance(func, tirx.PrimFunc) and _workspaces(func)
        }
        callers = {var: func for var, func in module.functions_items() if isinstance(func, relax.Function)}
        for function in callers.values():
            for var in _refusing(function, lifted):
                lifted.pop(var, None)
        if not lifted:
            return module
        functions = {var: func for var, func in module.functions_items() if var not in lifted}
        functions |= {each.var: each.func for each in lifted.values()}
        module = IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
        return with_functions(module, {var: _Caller(module, lifted).visit_expr(callers[var]) for var in callers})


def _workspaces(func: tirx.PrimFunc) -> list[Any]:
    """The buffers that the root block of `func` has, or that a statement of it allocates, as in TVM's scans."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return []
    root = func.body.block
    allocated = [each.buffer for each in _statements(root.body) if isinstance(each, tirx.AllocBuffer)]
    return [buffer for buffer in (*root.alloc_buffers, *allocated) if str(buffer.scope()) == "global"]


def _statements(body: Any) -> list[Any]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _without(func: tirx.PrimFunc, workspaces: list[Any]) -> Any:
    """The body of `func`, which allocates none of these."""

    def stays(buffer: Any) -> bool:
        return not any(buffer.same_as(each) for each in workspaces)

    root = func.body.block
    kept = [each for each in _statements(root.body) if not isinstance(each, tirx.AllocBuffer) or stays(each.buffer)]
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, tirx.stmt_seq(*kept), root.init,
        [buffer for buffer in root.alloc_buffers if stays(buffer)], root.match_buffers, root.annotations,
    )  # fmt: skip
    return s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block)


class _Lifted:
    """A PrimFunc with its workspaces as parameters behind the other buffers: symbolic sizes are last."""

    def __init__(self, var: GlobalVar, func: tirx.PrimFunc) -> None:
        self.workspaces = _workspaces(func)
        self.at = 1 + max((i for i, param in enumerate(func.params) if tirx.is_buffer_var(param)), default=-1)
        self.params = list(func.params)
        params = [*self.params[: self.at], *self.workspaces, *self.params[self.at :]]
        self.func = tirx.PrimFunc(params, _without(func, self.workspaces), func.ret_type, attrs=func.attrs)
        self.var = GlobalVar(var.name_hint)
        relax.expr._update_type(self.var, self.func.ty)  # as TVM's own builder does

    def shapes(self, arguments: Sequence[relax.Expr]) -> list[list[Any]] | None:
        """Return the shapes of the workspaces in terms of a call's sizes, or None if they do not follow from these."""
        sizes: dict[Any, Any] = {}
        if len(arguments) != len(self.params):
            return None
        for param, argument in zip(self.params, arguments, strict=True):
            if not tirx.is_buffer_var(param):
                sizes[param] = argument
                continue
            shape = getattr(argument.ty, "shape", None)
            if isinstance(shape, relax.ShapeExpr):
                pairs = zip(param.shape, shape.values, strict=True)
                sizes |= {dim: given for dim, given in pairs if isinstance(dim, tirx.Var)}
        shapes = [list(buffer.shape) for buffer in self.workspaces]
        if any(var not in sizes for shape in shapes for dim in shape for var in tir.variables(dim)):
            return None
        return [[tir.substitute(dim, sizes) for dim in shape] for shape in shapes]


def _refusing(function: relax.Function, lifted: dict[Any, _Lifted]) -> list[Any]:
    """The PrimFuncs that a function calls with arguments that do not tell the sizes, or hands to who calls them."""
    found: list[Any] = []

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call):
            return
        if expr.op in lifted and lifted[expr.op].shapes(list(expr.args)) is None:
            found.append(expr.op)
        found.extend(each for each in expr.args if isinstance(each, GlobalVar))

    relax.analysis.post_order_visit(function, visit)
    return found


@mutator
class _Caller(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    def __init__(self, module: IRModule, lifted: dict[Any, _Lifted]) -> None:
        super().__init__(module)
        self.lifted = lifted

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not isinstance(call.op, GlobalVar) or call.op not in self.lifted:
            return super().visit_call_(call)
        lifted = self.lifted[call.op]
        arguments = list(call.args)
        made = [
            self.builder_.emit(relax.op.builtin.alloc_tensor(relax.ShapeExpr(shape), str(buffer.dtype), 0), "workspace")
            for buffer, shape in zip(lifted.workspaces, lifted.shapes(arguments) or [], strict=True)
        ]
        given = [*arguments[: lifted.at], *made, *arguments[lifted.at :]]
        return relax.Call(lifted.var, given, call.attrs, call.ty_args)
