"""Operators become calls of PrimFuncs: TVM's legalization, with ours where TVM's is unsafe or inexact."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.errors import RelaxcError, UnsupportedModel
from relaxc.service.passes.common.rewrite import op_name
from relaxc.service.passes.legalize.legalize_casts import CASTS, ROUNDING_CASTS
from relaxc.service.passes.legalize.legalize_comparisons import COMPARISONS
from relaxc.service.passes.legalize.legalize_division import DIVISION
from relaxc.service.passes.legalize.legalize_extremes import EXTREMES, from_infinity
from relaxc.service.passes.legalize.legalize_functions import FUNCTIONS
from relaxc.service.passes.legalize.legalize_indexing import INDEXING
from relaxc.service.passes.legalize.legalize_norms import NORMS
from relaxc.service.passes.legalize.legalize_places import PLACES, PLACES_BY_KEYS
from relaxc.service.passes.legalize.legalize_powers import POWERS
from relaxc.service.passes.legalize.legalize_quantized import QUANTIZED, QUANTIZED_BY_CASTS, QUANTIZED_BY_FMA
from relaxc.service.passes.legalize.legalize_sampling import SAMPLING

__all__ = ["RULES", "Legalize", "operators_left"]

RULES = COMPARISONS | DIVISION | EXTREMES | FUNCTIONS | INDEXING | NORMS | PLACES | POWERS | SAMPLING
"""Ours for any target, which constants are evaluated by too."""

LATER = frozenset({
    "relax.call_tir", "relax.call_tir_inplace", "relax.call_dps_packed", "relax.call_pure_packed",
    "relax.call_inplace_packed", "relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape",
    "relax.size", "relax.assert_op", "relax.print", "relax.null_value", "relax.invoke_closure",
    "relax.call_builtin_with_ctx", "relax.memory.view", "relax.memory.ensure_zero_offset",
})  # fmt: skip
"""Calls that the VM lowering takes as they are."""

_PYTHON = "relax.run."
"""What TVM computes in Python, with numpy: a process that has its runtime alone does not."""


@tvm.transform.module_pass(opt_level=0, name="Legalize")
class Legalize:
    """`op(x) → call_tir(op, (x,))` for every operator.

    Raises UnsupportedModel that names every operator that has no TIR for its dtypes, shapes or attributes;
    it is kept in `raised` too, since it does not come through tvm as it is. `by_fma`: the target has multiply-adds of
    one rounding, by which bytes are quantized without a division. `by_casts`: it converts 8-bit floats. `rounds`: a
    cast to bfloat16 and back is more than a way to store what lies between. `by_keys`: places of maxima are reduced as
    one number each.
    """

    def __init__(
        self,
        raised: list[RelaxcError],
        *,
        by_fma: bool = False,
        by_casts: bool = False,
        rounds: bool = False,
        by_keys: bool = False,
    ) -> None:
        self.raised = raised
        quantized = QUANTIZED_BY_FMA if by_fma else QUANTIZED_BY_CASTS if by_casts else QUANTIZED
        casts = ROUNDING_CASTS if rounds else CASTS
        self.rules = RULES | quantized | casts | (PLACES_BY_KEYS if by_keys else {})

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module in calls of PrimFuncs."""
        module = from_infinity(relax.transform.LegalizeOps(self.rules)(module))
        left = operators_left(module)
        if left:
            names = ", ".join(f"{name.removeprefix('relax.')} ({count})" for name, count in sorted(left.items()))
            self.raised.append(
                UnsupportedModel(f"no kernel can be made for these operators: {names}", operators=dict(left))
            )
            raise self.raised[-1]
        return module


def operators_left(module: IRModule) -> Counter[str]:
    """Return the operators that have no kernel, with the number of their calls; those of Python's functions too."""
    left: Counter[str] = Counter()

    def visit(expr: relax.Expr) -> None:
        name = op_name(expr)
        if name == "relax.call_pure_packed" and str(expr.args[0].global_symbol).startswith(_PYTHON):
            left[f"relax.{str(expr.args[0].global_symbol).removeprefix(_PYTHON)}"] += 1
        elif name.startswith("relax.") and name not in LATER and not name.startswith(("relax.vm.", "relax.builtin.")):
            left[name] += 1

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return left
