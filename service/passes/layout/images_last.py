"""Images in NHWC on GPUs whose templates read them so: convolutions, pooling and what is between them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from relaxc.service.passes.common.rewrite import dims_of, op_name
from relaxc.service.passes.layout import nhwc_conv2d, nhwc_elementwise, nhwc_norms, nhwc_pooling
from relaxc.service.passes.layout.nhwc_images import NhwcImages, Rule
from relaxc.service.passes.precision.dtypes import LOW
from relaxc.service.passes.report import LayoutDecision, OptimizeReport

__all__ = ["ImagesLast"]

_RULES: dict[str, Rule] = {
    **nhwc_conv2d.RULES,
    **nhwc_pooling.RULES,
    **nhwc_norms.RULES,
    **nhwc_elementwise.RULES,
}


@tvm.transform.module_pass(opt_level=0, name="ImagesLast")
class ImagesLast:
    """2-D convolutions of images of the dtypes `taken` with constant weights compute on `[N, H, W, C]`.

        y = conv2d(x, W); z = relu(y + b)   →   p = permute(x); z' = relu(conv2d_nhwc(p, W') + b'); z = permute⁻¹(z')

    NHWC is kept through elementwise operators, casts, concatenation of channels, pooling and means over H and W; a
    permutation comes where something else reads the value. Weights are permuted here. Channels are known, in
    multiples of 8; images of fewer than 8 channels are filled up to 8 and padded where they are permuted.
    Group norms are computed on NHWC too.
    """

    def __init__(self, report: OptimizeReport, taken: Collection[str] = LOW) -> None:
        self.report = report
        self.taken = frozenset(taken)

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with convolutions on NHWC, or as it was if it has none that can be."""
        gvar = module.get_global_var("main")
        walker = _Walker(module, self.taken)
        function, images = walker.visit_expr(module[gvar]), walker.images
        if not images.convolutions:
            return module
        module = walker.builder_.get()
        module.update_func(module.get_global_var("main"), relax.analysis.remove_all_unused(function))
        counts = f"{images.convolutions} convolutions, {images.permutations} permutations"
        self.report.layout = LayoutDecision("NHWC", counts)
        return module


@mutator
class _Walker(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    def __init__(self, module: IRModule, taken: frozenset[str]) -> None:
        super().__init__(module)
        self.images = NhwcImages(self, module["main"], taken)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call, self.images.bound = binding.value, binding.var
        rule = _RULES.get(op_name(call))
        result = rule(self.images, call) if rule else None
        if result is None:
            super().visit_var_binding_(binding)
        elif isinstance(binding.var, relax.DataflowVar) and call.ty.ndim == 4:
            self.images.last[binding.var] = result
        else:
            plain = self.images.plain(result, dims_of(call))
            super().visit_var_binding_(relax.VarBinding(binding.var, plain))

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        return self.images.plain_of(var) if var in self.images.last else super().visit_dataflow_var_(var)
