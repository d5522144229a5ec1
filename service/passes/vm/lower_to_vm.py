"""`finalize`: scheduled module → what the VM's code generator takes, with its memory planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.target import Target

from relaxc.service.errors import CompileFailed
from relaxc.service.passes.common.rewrite import op_name, with_functions
from relaxc.service.passes.pipeline import lowering_passes
from relaxc.service.passes.report import MemoryReport
from relaxc.service.process.timings import Timings
from relaxc.service.signature import DimBounds

__all__ = ["finalize"]


PLAN_MAX_BYTES = 1 << 30
"""A plan at the upper bounds of the dims that takes more is not made: a run at usual sizes would pay for it."""

_MOST_GRAPHS = 64
"""CUDA graphs of one program, one for each size of a call; the runtime keeps all that it has captured."""

_LARGEST_PLANNED = 1 << 20
"""An upper bound that a plan is made at: 1e9, which stands for the end of any axis, squared is past 64 bits."""


def finalize(
    module: IRModule,
    target: Target,
    *,
    bounds: Mapping[str, DimBounds] | None = None,
    timings: Timings | None = None,
) -> tuple[IRModule, MemoryReport]:
    """Return the module after the VM lowering, and the memory that it plans.

    `bounds` are the signature's, by the name of the symbolic dim: with an upper bound for each, every
    intermediate value has a place in a plan made once, of at most PLAN_MAX_BYTES; without, those that depend on it
    are allocated as the run goes. Raise CompileFailed if a pass does.
    """
    bounds, timings = bounds or {}, timings or Timings()
    ends = {name: bound.maximum for name, bound in bounds.items()}
    upper = {name: end for name, end in ends.items() if end is not None and end <= _LARGEST_PLANNED}
    captured = _captured(module, bounds) if str(target.kind.name) == "cuda" else []
    lowered, memory = _lower(_with_upper_bounds(module, upper, captured), target, bounds, timings)
    if memory.planned_bytes > PLAN_MAX_BYTES and upper:
        at_bounds = memory.planned_bytes
        lowered, memory = _lower(_with_upper_bounds(module, {}), target, bounds, timings)
        memory = replace(memory, bytes_at_upper_bounds=at_bounds)
    return lowered, memory


def _captured(module: IRModule, bounds: Mapping[str, DimBounds]) -> list[str]:
    """The symbolic dims by whose sizes CUDA graphs are kept: all, where so few calls differ that each may have one."""
    names = sorted({str(var.name) for param in module["main"].params for var in _sizes_of(param)})
    ranges = [bounds[name] for name in names if name in bounds and bounds[name].maximum is not None]
    if len(ranges) < len(names):
        return []
    sizes = prod(int(each.maximum or 0) - each.minimum + 1 for each in ranges)
    return names if 0 < sizes <= _MOST_GRAPHS else []


def _sizes_of(param: Any) -> list[Any]:
    shape = getattr(param.ty, "shape", None)
    return [var for dim in shape for var in _variables(dim)] if isinstance(shape, relax.ShapeExpr) else []


def _with_upper_bounds(module: IRModule, upper: Mapping[str, int], captured: Sequence[str] = ()) -> IRModule:
    main = module["main"].without_attr("tir_var_upper_bound")
    if captured:
        main = main.with_attr("relax.rewrite_cuda_graph.capture_symbolic_vars", list(captured))
    return with_functions(
        module, {module.get_global_var("main"): main.with_attr("tir_var_upper_bound", upper) if upper else main}
    )


def _lower(
    module: IRModule, target: Target, bounds: Mapping[str, DimBounds], timings: Timings
) -> tuple[IRModule, MemoryReport]:
    memory = MemoryReport(0, 0)
    config = {"relax.backend.use_cuda_graph": True}
    with target, tvm.transform.PassContext(opt_level=3, config=config, instruments=[timings.passes("vm")]):
        for each in lowering_passes(target):
            try:
                module = each(module)
            except Exception as error:
                message = f"pass {each.info.name} of the VM lowering raised {type(error).__name__}: {error}"
                raise CompileFailed(message, stage="build", phase="finalize") from error
            if each.info.name == "ShareStorage":
                memory = _planned(module["main"], bounds)
    return module, memory


def _planned(main: relax.Function, bounds: Mapping[str, DimBounds]) -> MemoryReport:
    """Storages as ShareStorage left them: what it planned, and what it could not."""
    sizes: list[int] = []
    dynamic = 0
    names: set[str] = set()
    outputs = _returned(main)

    def count(dims: list[Any]) -> None:
        nonlocal dynamic
        symbolic = {str(var.name) for dim in dims for var in _variables(dim)}
        names.update(symbolic)
        dynamic += bool(symbolic)

    for binding in (binding for block in main.body.blocks for binding in block.bindings):
        name = op_name(getattr(binding, "value", None))
        if name == "relax.memory.alloc_storage":
            size = binding.value.args[0].values[0]
            if hasattr(size, "value"):
                sizes.append(int(size))
            else:
                count([size])
        elif name == "relax.builtin.alloc_tensor" and binding.var not in outputs:
            count(list(binding.value.args[0].values))
    unbounded = sorted(name for name in names if name not in bounds or bounds[name].maximum is None)
    return MemoryReport(sum(sizes), len(sizes), dynamic, tuple(unbounded))


def _returned(main: relax.Function) -> set[Any]:
    """The variables of the result, which is allocated for the caller and not planned."""
    values = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    found: set[Any] = set()
    pending: list[Any] = [main.body.body]
    while pending:
        expr = pending.pop()
        if isinstance(expr, relax.Tuple):
            pending.extend(expr.fields)
        elif isinstance(expr, relax.Var) and expr not in found:
            found.add(expr)
            value = values.get(expr)
            if isinstance(value, relax.Var | relax.Tuple):
                pending.append(value)
            elif value is not None and op_name(value) == "relax.reshape":
                pending.append(value.args[0])
    return found


def _variables(size: Any) -> list[Any]:
    return [] if hasattr(size, "value") else list(tvm.tirx.analysis.undefined_vars(size))
