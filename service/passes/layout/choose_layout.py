"""The layout of 2-D convolutions, chosen by what transposes would move at run time."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import op_name
from relaxc.service.passes.report import LayoutDecision, OptimizeReport
from relaxc.service.passes.simplify.fold_constants import FoldConstants
from relaxc.service.passes.simplify.simplify_shapes import SimplifyShapes

__all__ = ["ChooseLayout"]


@tvm.transform.module_pass(opt_level=0, name="ChooseLayout")
class ChooseLayout:
    """Tries NHWC for the whole graph, and keeps it only if strictly fewer elements are transposed at run time.

    A model that came with its transposes (an NHWC network behind an NCHW exporter, layer norms over
    channels) loses them so; all others stay as they are. The decision and both costs are in the report.
    On a CPU, BlockChannels is in its place: its templates read NCHW and blocks of it. What ImagesLast made stays.
    """

    def __init__(self, report: OptimizeReport) -> None:
        self.report = report

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module in the cheaper layout."""
        if self.report.layout.chosen == "NHWC":
            return module
        before = _moved_elements(module)
        if before == 0:
            self.report.layout = LayoutDecision("NCHW", "no transpose to save")
            return module
        candidate = _to_nhwc(module)
        after = _moved_elements(candidate)
        if after < before:
            self.report.layout = LayoutDecision("NHWC", "fewer elements transposed", before, after)
            return candidate
        self.report.layout = LayoutDecision("NCHW", "NHWC would not transpose fewer elements", before, after)
        return module


def _to_nhwc(module: IRModule) -> IRModule:
    return tvm.transform.Sequential(
        [
            relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
            relax.transform.Normalize(),
            FoldConstants(),
            SimplifyShapes(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
    )(module)


def _moved_elements(module: IRModule) -> int:
    """Elements that transposes move in one run of `main`; a symbolic size counts as 1."""
    moved = 0

    def visit(expr: relax.Expr) -> None:
        nonlocal moved
        if op_name(expr) in ("relax.permute_dims", "relax.layout_transform") and isinstance(expr.ty, relax.TensorType):
            moved += math.prod(int(getattr(dim, "value", 1)) for dim in expr.ty.shape or ())

    relax.analysis.post_order_visit(module["main"], visit)
    return moved
