"""Which operators may compute in which dtype: the tables that the mixed-precision passes share."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import op_name

__all__ = [
    "BYTES",
    "CONTRACTIONS",
    "FLOAT8",
    "LOW",
    "MOVES",
    "WIDENED",
    "has_low_arithmetic",
    "is_low",
    "is_widening",
    "with_dtype",
]

LOW = ("float16", "bfloat16")

FLOAT8 = "float8_e4m3fn"
"""The 8-bit float that there are kernels for."""

BYTES = ("int8", "uint8")
"""What quantized products multiply."""

CONTRACTIONS = (
    "matmul",
    *(f"nn.conv{rank}d{suffix}" for rank in (1, 2, 3) for suffix in ("", "_transpose")),
)
"""Operators that multiply and add: low-precision operands, fp32 accumulation."""

MOVES = (
    "permute_dims", "reshape", "expand_dims", "squeeze", "flatten", "strided_slice", "concat", "take",
    "flip", "gather_elements", "gather_nd", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d",
)  # fmt: skip
"""Operators whose result holds values of their first operand: a rounding before them is a rounding after them."""

WIDENED = (
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "clip", "cos",
    "cosh", "cumprod", "cumsum", "divide", "einsum", "erf", "ewise_fma", "exp", "floor", "floor_divide",
    "floor_mod", "log", "log_add_exp", "max", "maximum", "mean", "min", "minimum", "mod", "multiply",
    "negative", "outer", "power", "prod", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "square", "std", "subtract", "sum", "tan", "tanh", "trunc", "variance", "where",
    "nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d", "nn.attention",
    "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.batch_norm", "nn.gelu", "nn.gelu_tanh",
    "nn.group_norm", "nn.instance_norm", "nn.layer_norm", "nn.leakyrelu", "nn.log_softmax", "nn.prelu",
    "nn.relu", "nn.relu6", "nn.rms_norm", "nn.selu", "nn.silu", "nn.softmax", "nn.softplus",
    "image.resize2d",
)  # fmt: skip
"""Operators that compute in fp32 whatever their operands are stored in."""


def is_low(expr: relax.Expr) -> bool:
    """Return whether `expr` is a tensor of 16-bit floats."""
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype) in LOW


def is_widening(value: relax.Expr) -> bool:
    """Return whether a value was widened from 16 bits, and so is rounded already."""
    return op_name(value) == "relax.astype" and is_low(value.args[0])


def has_low_arithmetic(module: IRModule) -> frozenset[str]:
    """Return the 16-bit dtypes that some operator of the module computes in."""
    found: set[str] = set()
    computing = {f"relax.{name}" for name in (*CONTRACTIONS, *WIDENED)}

    def visit(expr: relax.Expr) -> None:
        if op_name(expr) in computing:
            found.update(str(arg.ty.dtype) for arg in expr.args if is_low(arg))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return frozenset(found)


def with_dtype(call: relax.Call, args: list[relax.Expr], dtype: str) -> relax.Expr:
    """Return the call on other arguments, its result's dtype replaced where an attribute names one."""
    attrs: Any = call.attrs
    if attrs is None:
        return relax.Call(call.op, args, attrs)
    info = type(attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(attrs, field.name) for field in info.fields}
    named = {"out_dtype", "dtype"} & fields.keys()
    if "out_dtype" not in named and all(fields[name] is None for name in named):
        return relax.Call(call.op, args, attrs)
    return relax.Call(call.op, args, tvm.ir.make_node(info.type_key, **(fields | dict.fromkeys(named, dtype))))
