"""The sums of a quantized network that norms read are stored in 16 bits, where the rest of it computes in those."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import op_name, with_functions
from relaxc.service.passes.precision.read_low import ReadLow
from relaxc.service.passes.precision.store_low import rounded_at_definitions

__all__ = ["StoreSumsLow"]

_NORMS = ("relax.nn.layer_norm", "relax.nn.rms_norm")
_BEHIND = tuple(f"relax.{name}" for name in ("add", "subtract", "multiply", "astype", "quantize", "dequantize"))
_STEPS = 16


@tvm.transform.module_pass(opt_level=0, name="StoreSumsLow")
class StoreSumsLow:
    """`y = dequantized product of bytes + residual; norm(y) → c = cast₁₆(y); norm(cast₃₂(c))`, for all readers of `y`.

    It is the residual stream of a network whose other values are 8 bits, and is stored as the same network in `dtype`
    stores it: half as much to write and to read. A rounding more than the model has; without `--precision` it stays.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def transform_module(self, module: IRModule, context: Any) -> IRModule:
        """Return the module with such sums rounded; the same object if it has none."""
        changed = {}
        for gvar, function in module.functions_items():
            sums = _sums(function) if isinstance(function, relax.Function) else set()
            if sums:
                changed[gvar] = rounded_at_definitions(module, function, dict.fromkeys(sums, self.dtype))
        reads_low: Any = ReadLow()
        return reads_low(with_functions(module, changed)) if changed else module


def _sums(function: relax.Function) -> set[Any]:
    """The variables that a norm reads, and that are sums with a product of bytes."""
    values = relax.analysis.get_var2val(function)
    read = {value.args[0] for value in values.values() if op_name(value) in _NORMS}
    return {
        var
        for var in read
        if isinstance(var, relax.Var)
        and str(var.ty.dtype) == "float32"
        and op_name(values.get(var)) == "relax.add"
        and any(_is_of_bytes(arg, values) for arg in values[var].args)
    }


def _is_of_bytes(expr: relax.Expr, values: Any) -> bool:
    """Whether `expr` is a product of bytes, dequantized, with a bias or without."""
    for _ in range(_STEPS):
        value: Any = values.get(expr) if isinstance(expr, relax.Var) else None
        name = op_name(value)
        if name == "relax.matmul":
            return str(value.ty.dtype) == "int32"
        if name not in _BEHIND:
            return False
        expr = next((arg for arg in value.args if isinstance(arg, relax.Var)), None)
    return False
