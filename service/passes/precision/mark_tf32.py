"""`--precision tf32`: which PrimFuncs may round what they multiply."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, tirx

from relaxc.schedules.cuda.gemm.form import TF32
from relaxc.schedules.ir.blocks import block_realizes

__all__ = ["MarkTf32"]


@tvm.transform.module_pass(opt_level=0, name="MarkTf32")
class MarkTf32:
    """Says of each PrimFunc with a sum of products that tf32 will do: `attrs {} → {"relaxc.tf32": 1}`."""

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with its contractions marked; all else as it was."""
        for gvar, func in list(module.functions_items()):
            if isinstance(func, tirx.PrimFunc) and any(map(_sums_products, block_realizes(func))):
                module.update_func(gvar, func.with_attr(TF32, 1))
        return module


def _sums_products(realize: Any) -> bool:
    block = realize.block
    value = getattr(block.body, "value", None)
    return block.init is not None and isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul)
