"""Convolutions on blocked layouts: `NCHW[v]c` for as much of the graph as takes it, weights packed at compile time."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from relaxc.schedules.cpu import planning
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.plan import Planner
from relaxc.service.passes.common.images import is_image
from relaxc.service.passes.common.rewrite import op_name
from relaxc.service.passes.layout import blocked_conv2d, blocked_elementwise, blocked_pooling
from relaxc.service.passes.layout.blocked_images import BlockedImages, Rule
from relaxc.service.passes.report import LayoutDecision, OptimizeReport

__all__ = ["BlockChannels"]

_RULES: dict[str, Rule] = {**blocked_conv2d.RULES, **blocked_pooling.RULES, **blocked_elementwise.RULES}


@tvm.transform.module_pass(opt_level=0, name="BlockChannels")
class BlockChannels:
    """2-D convolutions with constant weights compute on tensors of `[N, C/v, H, W, v]`, v the sums in a vector.

        y = conv2d(x, W); z = relu(y + b)   →   p = pack(x); z' = relu(conv2d_blocked(p, W') + b'); z = unpack(z')

    The blocked form is kept through elementwise operators, concatenation of channels, pooling and means over H and W;
    `unpack` comes where something else reads the value. W' and b' are packed here. Channels are filled up with zeros to
    whole vectors. They are of float32, or of bytes summed in int32, and stay in bytes between quantized convolutions.
    """

    def __init__(self, report: OptimizeReport, cpu: Cpu, planner: Planner | None = None) -> None:
        self.report = report
        self.cpu = cpu
        self.planner = planner or planning.Defaults(cpu)

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with blocked convolutions; the same object if it has none that can be."""
        gvar = module.get_global_var("main")
        blocker = _Blocker(module, self.cpu, self.planner)
        function, images = blocker.visit_expr(module[gvar]), blocker.images
        if not images.convolutions:
            return module
        module = blocker.builder_.get()
        module.update_func(module.get_global_var("main"), relax.analysis.remove_all_unused(function))
        self.report.layout = LayoutDecision(
            f"NCHW{images.lanes}c",
            f"{images.convolutions} convolutions blocked, {images.packs} packs and {images.unpacks} unpacks",
        )
        return module


@mutator
class _Blocker(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    def __init__(self, module: IRModule, cpu: Cpu, planner: Planner) -> None:
        super().__init__(module)
        self.images = BlockedImages(self, module["main"], cpu, planner)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call, self.images.bound = binding.value, binding.var
        if isinstance(binding.var, relax.DataflowVar) and is_image(call):
            rule = _RULES.get(op_name(call))
            result = rule(self.images, call) if rule else None
            if result is not None:
                self.images.blocked[binding.var] = result
                return
        super().visit_var_binding_(binding)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        return self.images.unpack(var) if var in self.images.blocked else super().visit_dataflow_var_(var)
