"""Graph passes: an imported module becomes PrimFuncs to schedule, and then what the VM takes."""

from __future__ import annotations

from service.passes.finalize import finalize
from service.passes.optimize import Optimized, optimize
from service.passes.plugin import Plugin, load_plugin
from service.passes.report import LayoutDecision, MemoryReport, OptimizeReport

__all__ = [
    "LayoutDecision",
    "MemoryReport",
    "OptimizeReport",
    "Optimized",
    "Plugin",
    "finalize",
    "load_plugin",
    "optimize",
]
