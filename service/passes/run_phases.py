"""`optimize`: the phases over a module, checked and dumped between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import IRModule, relax, tirx
from tvm.target import Target

from relaxc.schedules.ir.tir import collect
from relaxc.schedules.plan import Planner
from relaxc.schedules.strict import is_strict
from relaxc.service.dump import Dump, no_dump
from relaxc.service.errors import CompileFailed, PluginError
from relaxc.service.passes.check import Boundary, check
from relaxc.service.passes.common.constants import size_bytes
from relaxc.service.passes.common.kernel_graph import kernel_graph
from relaxc.service.passes.common.origins import with_nodes
from relaxc.service.passes.common.rewrite import op_name
from relaxc.service.passes.common.size_order import sizes_in_order
from relaxc.service.passes.phase import Phase
from relaxc.service.passes.pipeline import Job, phases
from relaxc.service.passes.plugin import Plugin
from relaxc.service.passes.precision.dtypes import has_low_arithmetic
from relaxc.service.passes.report import OptimizeReport
from relaxc.service.process.timings import Timings
from relaxc.service.request import CompileOptions
from relaxc.service.signature import STATE

__all__ = ["Optimized", "optimize"]

Progress = Callable[[int, int], None]
"""`(done, total)`, in phases."""


@dataclass(frozen=True)
class Optimized:
    """A module to schedule: Relax over PrimFuncs, whose `main` takes the inputs and then a tuple of the weights."""

    module: IRModule
    weights: dict[str, Any]
    """Name → tvm.runtime.Tensor on the CPU, in the order of the tuple."""
    report: OptimizeReport
    unfused: IRModule | None = None
    """The module as it was when fused kernels were still functions of calls; None where nothing is fused."""


def optimize(
    module: IRModule,
    target: Target,
    options: CompileOptions,
    *,
    plugins: Sequence[Plugin] = (),
    planner: Planner | None = None,
    known_weights: frozenset[str] = frozenset(),
    dump: Dump = no_dump,
    progress: Progress | None = None,
    timings: Timings | None = None,
) -> Optimized:
    """Return the module after every graph pass, as docs/stages.md describes it.

    The layout passes ask `planner` how to compute the heavy operators; without one they take the defaults.
    `known_weights` are the digests of tensors that the options' `weights` may round (`relaxc.service.rounding`).

    Raise UnsupportedModel for operators without a kernel, PluginError where a plugin raises or breaks the
    module, CompileFailed where one of our own passes does; both name the phase.
    """
    report = OptimizeReport(plugins=tuple(plugin.path.name for plugin in plugins))
    low = has_low_arithmetic(module)
    job = Job(
        options.opt_level,
        options.precision,
        low,
        options.weights,
        known_weights,
        tuple(plugins),
        report,
        planner=planner,
        states=int((module["main"].attrs or {}).get(STATE, 0)),
    )
    report.precision = _describe(options, low)
    timings = timings or Timings()
    boundary = Boundary(module)
    todo = phases(target, job)
    check(module, boundary, "import")
    every_type = is_strict() or bool(plugins)  # of our own passes alone, once they are through
    for done, phase in enumerate(todo):
        if progress:
            progress(done, len(todo))
        module = _run(phase, module, boundary, target, job, timings, types=every_type or phase is todo[-1])
        dump(f"relax_after_{phase.name}", module.script)
    if progress:
        progress(len(todo), len(todo))
    _summarize(module, job)
    module = with_nodes(module)
    return Optimized(module, job.weights, report, job.unfused[-1] if job.unfused else None)


def _describe(options: CompileOptions, low: frozenset[str]) -> str:
    if options.precision is not None:
        return f"{options.precision.value} operands, fp32 arithmetic"
    return f"{', '.join(sorted(low))} operands, fp32 arithmetic" if low else "as the model"


def _run(
    phase: Phase, module: IRModule, boundary: Boundary, target: Target, job: Job, timings: Timings, *, types: bool
) -> IRModule:
    ours = len(phase.passes) - sum(len(plugin.passes.get(phase.name, ())) for plugin in job.plugins)
    module = _sequence(phase.passes[:ours], module, target, phase.name, job, timings)
    if not phase.passes[:ours]:
        pass  # it is as it was checked: to do so takes 30 ms for a network of convolutions
    elif phase.name == "plugins" and job.plugins:
        files = ", ".join(str(plugin.path) for plugin in job.plugins)
        check(module, boundary, f"plugins ({files})", PluginError)
    else:
        check(module, boundary, phase.name, CompileFailed, types=types)
    for each in phase.passes[ours:]:
        plugin = next(p for p in job.plugins if each in p.passes.get(phase.name, ()))
        try:
            module = _sequence([each], module, target, phase.name, job, timings)
        except CompileFailed as error:
            raise plugin.error(error.message, error.__cause__) from error
        check(module, boundary, f"{phase.name} (pass {each.info.name} of {plugin.path})", PluginError)
    return module


def _sequence(passes: list[Any], module: IRModule, target: Target, phase: str, job: Job, timings: Timings) -> IRModule:
    """The passes one by one, so that an error names the one that raised."""
    instruments = [timings.passes("graph")]
    with target, sizes_in_order(), tvm.transform.PassContext(opt_level=3, instruments=instruments):
        for each in passes:
            try:
                module = job.nodes.follow(module, each(module))
            except Exception as error:
                if job.raised:
                    raise job.raised[0] from error
                raise CompileFailed(
                    f"pass {each.info.name} of phase {phase} raised {type(error).__name__}: {_first_line(error)}",
                    stage="optimize",
                    phase=phase,
                ) from error
    return module


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else ""


def _summarize(module: IRModule, job: Job) -> None:
    report = job.report
    calls = [op_name(call) for call in collect(module["main"], relax.Call)]
    report.kernel_calls = sum(calls.count(name) for name in ("relax.call_tir", "relax.call_tir_inplace"))
    report.graph = kernel_graph(module)
    report.prim_funcs = sum(isinstance(function, tirx.PrimFunc) for function in module.functions.values())
    report.weights = len(job.weights)
    report.weight_bytes = sum(map(size_bytes, job.weights.values()))
