"""Graph passes: an imported module becomes PrimFuncs to schedule, and then what the VM takes."""

from __future__ import annotations

from relaxc.service.passes.plugin import Plugin, load_plugin
from relaxc.service.passes.report import LayoutDecision, MemoryReport, OptimizeReport
from relaxc.service.passes.run_phases import Optimized, optimize
from relaxc.service.passes.triton_kernel import TritonKernel
from relaxc.service.passes.vm.lower_to_vm import finalize

__all__ = [
    "LayoutDecision",
    "MemoryReport",
    "OptimizeReport",
    "Optimized",
    "Plugin",
    "TritonKernel",
    "finalize",
    "load_plugin",
    "optimize",
]
