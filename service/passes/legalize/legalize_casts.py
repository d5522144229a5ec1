"""Casts that do what TVM's lowering and arithmetic would leave out.

bfloat16(x)     rounds     bfloat16 is computed in float32, where a cast there and back is none
int64(i + 1)    wraps      of int32 it was int64(i) + 1: integers of 32 bits are indices to TVM, which never overflow
uint8(83 * i)   wraps      a vector of a loop's i was [0, 83, ..., 581] again where that is cast to wider integers
int8(300.7)     is 44      as numpy, torch and ONNX Runtime have it on x86; LLVM has any number: 127 in vectors
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from relaxc.schedules.ir.dtypes import is_float
from relaxc.service.passes.legalize.legalize_comparisons import is_computed, opaque
from relaxc.service.passes.legalize.legalize_norms import accumulator

__all__ = ["CASTS", "ROUNDING_CASTS"]


def _wrapped(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, dtype = call.args[0], str(call.ty.dtype)
    if is_float(str(data.ty.dtype)) and dtype in _THROUGH:

        def cast(data: te.Tensor) -> te.Tensor:
            return te.compute(data.shape, lambda *at: _whole(data(*at), dtype), name="cast")

        return builder.call_te(cast, data, primfunc_name_hint="cast")
    if not _wraps(str(data.ty.dtype), dtype) or not is_computed(builder, data):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(lambda data: topi.cast(opaque(data), dtype), data, primfunc_name_hint="cast")


_THROUGH = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), "int32"),
    **dict.fromkeys(("uint32", "uint64"), "int64"),
}
"""Integers that a processor converts no floats to: by which others."""


def _whole(value: Any, dtype: str) -> Any:
    if dtype != "uint64":
        return value.astype(_THROUGH[dtype]).astype(dtype)
    value = value.astype(accumulator(str(value.ty.dtype)))
    half = tirx.const(2.0**63, str(value.ty.dtype))
    high = (value - half).astype("int64").astype(dtype) + tirx.const(1 << 63, dtype)
    return tirx.Select(value >= half, high, value.astype("int64").astype(dtype))


def _wraps(old: str, new: str) -> bool:
    """Whether integers may wrap in a cast, or did before it and TVM would have them not."""
    if not (old.startswith(("int", "uint")) and new.startswith(("int", "uint"))):
        return False
    return (old, new) == ("int32", "int64") or not np.can_cast(old, new)


def _rounded_or_wrapped(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, dtype = call.args[0], str(call.ty.dtype)
    if dtype != "bfloat16" or str(data.ty.dtype) == dtype:
        return _wrapped(builder, call)

    def cast(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *at: _rounded(data(*at).astype("float32")).astype(dtype), name="cast")

    return builder.call_te(cast, data, primfunc_name_hint="cast")


def _rounded(value: Any) -> Any:
    """A float32 whose value is that of a bfloat16, the nearest one, halves to even; NaN stays NaN."""
    bits = tirx.reinterpret("uint32", value)
    even = bits + _word(0x7FFF) + ((bits >> _word(16)) & _word(1))
    kept = tirx.Select(bits & _word(0x7FFFFFFF) > _word(0x7F800000), bits | _word(0x400000), even)
    return tirx.reinterpret("float32", kept & _word(0xFFFF0000))


def _word(value: int) -> Any:
    return tirx.const(value, "uint32")


CASTS = {"relax.astype": _wrapped}

ROUNDING_CASTS = {"relax.astype": _rounded_or_wrapped}
"""Of networks that round to bfloat16 where they say so."""
