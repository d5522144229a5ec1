"""`finalize`: scheduled module → what the VM's code generator takes, with its memory planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.target import Target

from service.errors import CompileFailed
from service.passes.pipeline import lowering_passes
from service.passes.report import MemoryReport
from service.passes.rewrite import op_name
from service.request import DimBounds

__all__ = ["finalize"]


def finalize(
    module: IRModule, target: Target, *, bounds: Mapping[str, DimBounds] | None = None
) -> tuple[IRModule, MemoryReport]:
    """The module after the VM lowering, and the memory that it plans.

    `bounds` are the signature's, by the name of the symbolic dim: with an upper bound for each, every
    intermediate value has a place in a plan made once; without, the ones that depend on it are allocated as the
    run goes. Raises CompileFailed if a pass does.
    """
    module = _with_bounds(module, bounds or {})
    memory: MemoryReport | None = None
    with target, tvm.transform.PassContext(opt_level=3):
        for each in lowering_passes(target):
            try:
                module = each(module)
            except Exception as error:
                message = f"pass {each.info.name} of the VM lowering raised {type(error).__name__}: {error}"
                raise CompileFailed(message, stage="optimize", phase="finalize") from error
            if each.info.name == "StaticPlanBlockMemory":
                memory = _planned(module, bounds or {})
    assert memory is not None
    return module, memory


def _with_bounds(module: IRModule, bounds: Mapping[str, DimBounds]) -> IRModule:
    upper = {name: bound.maximum for name, bound in bounds.items() if bound.maximum is not None}
    lower = {name: bound.minimum for name, bound in bounds.items()}
    main = module["main"]
    for attribute, values in (("tir_var_upper_bound", upper), ("tir_var_lower_bound", lower)):
        if values:
            main = main.with_attr(attribute, values)
    module = module.clone()
    module.update_func(module.get_global_var("main"), main)
    return module


def _planned(module: IRModule, bounds: Mapping[str, DimBounds]) -> MemoryReport:
    sizes: list[int] = []
    symbolic: set[str] = set()
    dynamic = 0

    def visit(expr: relax.Expr) -> None:
        nonlocal dynamic
        if op_name(expr) == "relax.memory.alloc_storage":
            size = expr.args[0].values[0]
            if hasattr(size, "value"):
                sizes.append(int(size))
            else:
                dynamic += 1
                symbolic.update(str(var.name) for var in tvm.tirx.analysis.undefined_vars(size))
        elif op_name(expr) == "relax.builtin.alloc_tensor":
            variables = [v for dim in expr.args[0].values for v in _variables(dim)]
            if variables:
                symbolic.update(variables)
                dynamic += 1

    relax.analysis.post_order_visit(module["main"], visit)
    unbounded = sorted(name for name in symbolic if name not in bounds or bounds[name].maximum is None)
    return MemoryReport(sum(sizes), len(sizes), dynamic, tuple(unbounded))


def _variables(dim: Any) -> list[str]:
    return [str(var.name) for var in tvm.tirx.analysis.undefined_vars(dim)] if not hasattr(dim, "value") else []
