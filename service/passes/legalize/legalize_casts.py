"""A cast to bfloat16 that rounds: TVM's lowering computes bfloat16 in float32, where a cast there and back is none."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

__all__ = ["ROUNDING_CASTS"]


def _astype(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, dtype = call.args[0], str(call.ty.dtype)
    if dtype != "bfloat16" or str(data.ty.dtype) == dtype:
        return call.op.get_attr("FLegalize")(builder, call)

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


ROUNDING_CASTS = {"relax.astype": _astype}
