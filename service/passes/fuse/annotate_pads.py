"""Pads at the end of axes are no elementwise operators, for which TVM takes them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, tirx

from relaxc.service.passes.common.rewrite import dims_equal, with_functions

__all__ = ["AnnotatePads"]

_PATTERN, _INJECTIVE = "op_pattern", 2


@tvm.transform.module_pass(opt_level=0, name="AnnotatePads")
class AnnotatePads:
    """Give a PrimFunc that reads element i as element i, and has more of them than what it reads, the right pattern.

    AnnotateTIROpPattern looks at the indices alone, so that FuseOps makes such a pad the epilogue of a contraction,
    whose tiles then do not divide the result.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with such PrimFuncs as injective ones; the same object if it has none."""
        found = {
            var: function.with_attr(_PATTERN, _INJECTIVE)
            for var, function in module.functions.items()
            if isinstance(function, tirx.PrimFunc) and _is_elementwise(function) and _pads(function)
        }
        return with_functions(module, found)


def _is_elementwise(function: tirx.PrimFunc) -> bool:
    return function.attrs is not None and int(function.attrs.get(_PATTERN, _INJECTIVE)) < _INJECTIVE


def _pads(function: tirx.PrimFunc) -> bool:
    """Whether an axis of the result is longer than that of an operand of its rank, which is not broadcast."""
    *operands, result = [param.shape for param in function.params if tirx.is_buffer_var(param)]
    alike = [shape for shape in operands if len(shape) == len(result)]
    return any(_is_longer(whole, dim) for shape in alike for dim, whole in zip(shape, result, strict=True))


def _is_longer(whole: Any, dim: Any) -> bool:
    if isinstance(whole, tirx.IntImm) and isinstance(dim, tirx.IntImm):
        return 1 < int(dim) < int(whole)
    return int(dim) != 1 if isinstance(dim, tirx.IntImm) else not dims_equal([dim], [whole])
