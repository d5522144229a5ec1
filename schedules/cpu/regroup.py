"""A fused kernel emitted anew by another plan: another algorithm and layout, with the same operators around it."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax, tirx

from relaxc.schedules.cpu import planning
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import PrimFunc, SBlock
from relaxc.schedules.operators import Conv2d, Matmul, Operator
from relaxc.schedules.plan import PLAN, Plan, plan_of

__all__ = ["emitted", "group_of", "weight_position", "weight_shape"]

_WEIGHT = 1
"""The place of the weights among the operands of a kernel with a plan."""


def group_of(unfused: IRModule, name: str) -> IRModule | None:
    """Return the calls that the fused function `name` is made of as `main` of a module by itself.

    `unfused` is the module whose fused functions are still Relax functions of calls. None where no call has a plan with
    weights in a layout of its own.
    """
    found = [function for var, function in unfused.functions_items() if str(var.name_hint) == name]
    if not found or (isinstance(found[0], tirx.PrimFunc) and not _has_layouts(found[0])):
        return None
    if isinstance(found[0], tirx.PrimFunc):
        return _alone(found[0], name)
    calls = _calls(found[0])
    planned = [call for _, call in calls if _has_layouts(unfused[call.args[0]])]
    params = list(found[0].params)
    if len(planned) != 1 or not any(param.same_as(planned[0].args[1].fields[_WEIGHT]) for param in params):
        return None
    return _again(unfused, found[0], None)


def emitted(group: IRModule, plan: Plan) -> PrimFunc:
    """Return the PrimFunc of a group with its kernel as `plan` has it. Raise ValueError where it is not one kernel."""
    module = _again(group, group["main"], plan)
    passes = [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
    with tvm.transform.PassContext(opt_level=3):
        fused = tvm.transform.Sequential([*passes, relax.transform.DeadCodeElimination()])(module)
    made = [func for func in fused.functions.values() if isinstance(func, tirx.PrimFunc)]
    if len(made) != 1:
        raise ValueError(f"the operators behind {plan.operator.kind} do not fuse with {plan.template}")
    return made[0]


def weight_position(func: PrimFunc) -> int | None:
    """Return which parameter of a PrimFunc with a plan is weights in a layout of the plan's; None if there are none."""
    if not _has_layouts(func):
        return None
    for realize in block_realizes(func):
        if realize.block.annotations.get(PLAN) is not None:
            return _position(func, realize.block)
    return None


def weight_shape(operator: Operator) -> tuple[int, ...]:
    """Return the shape of the weights before they are packed: `KN` or `OIHW`."""
    if isinstance(operator, Matmul):
        return operator.k, operator.n
    if not isinstance(operator, Conv2d):
        raise ValueError(f"a {operator.kind} has no weights that are packed in several ways")
    return operator.filters, operator.channels // operator.groups, *operator.kernel


def _has_layouts(func: PrimFunc) -> bool:
    plan = plan_of(func)
    return plan is not None and planning.has_layouts(plan)


def _position(func: PrimFunc, block: SBlock) -> int | None:
    sources = [load.source for load in tir.loads(block.body.value) if not load.source.same_as(block.body.buffer)]
    params = list(func.params)
    direct = [i for i, param in enumerate(params) if param.same_as(sources[-1])]
    if direct:
        return direct[0]
    # Scaled by a gate on the way.
    shape = [tir.as_int(extent) for extent in sources[-1].shape][1:]
    same = [i for i, param in enumerate(params) if [tir.as_int(extent) for extent in param.shape] == shape]
    return same[0] if same else None


def _calls(function: Any) -> list[tuple[Any, Any]]:
    """The bindings of calls of PrimFuncs in a function: variable and call."""
    bindings = [(binding.var, binding.value) for block in function.body.blocks for binding in block.bindings]
    return [(var, value) for var, value in bindings if not isinstance(value, relax.Var)]


def _alone(func: PrimFunc, name: str) -> IRModule:
    """One call of a PrimFunc."""
    types = [relax.TensorType([tir.as_int(d) for d in param.shape], str(param.dtype)) for param in func.params]
    params = [relax.Var(f"p{i}", ty) for i, ty in enumerate(types[:-1])]
    block = relax.BlockBuilder()
    with block.function("main", params):
        with block.dataflow():
            call = relax.call_tir(block.add_func(func, name), relax.Tuple(params), out_ty=types[-1])
            result = block.emit_output(call)
        block.emit_func_output(result)
    return block.get()


def _again(source: IRModule, function: Any, plan: Plan | None) -> IRModule:
    """The calls of `function` as `main` of a new module; with a plan, the kernel that has one computes as this says."""
    block, values = relax.BlockBuilder(), {}
    kernel = next(call for _, call in _calls(function) if _has_layouts(source[call.args[0]]))
    for param in function.params:
        ty = param.ty
        if plan is not None and param.same_as(kernel.args[1].fields[_WEIGHT]):
            ty = relax.TensorType(planning.packed_shape(plan, weight_shape(plan.operator)), plan.operator.operands[1])
        values[param] = relax.Var(str(param.name), ty)
    with block.function("main", list(values.values())):
        with block.dataflow():
            for var, call in _calls(function):
                args = [values.get(arg, arg) for arg in call.args[1].fields]
                if plan is not None and call.same_as(kernel):
                    name = planning.kernel_name(plan)
                    values[var] = block.emit(block.call_te(planning.computation(plan), *args, primfunc_name_hint=name))
                else:
                    gvar = block.add_func(source[call.args[0]], str(call.args[0].name_hint))
                    values[var] = block.emit(relax.call_tir(gvar, relax.Tuple(args), out_ty=var.ty))
            for inner in function.body.blocks:
                for binding in inner.bindings:
                    if isinstance(binding.value, relax.Var):
                        values[binding.var] = values[binding.value]
            result = block.emit_output(values[function.body.body])
        block.emit_func_output(result)
    return block.get()
