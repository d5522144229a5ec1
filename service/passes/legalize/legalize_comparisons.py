"""A value compared with itself, which is an old test for NaN. TVM's arithmetic takes `x == x` for true."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from schedules.ir.dtypes import is_float

__all__ = ["COMPARISONS"]


def _compare(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    left, right = call.args
    if not (left.same_as(right) and is_float(str(left.ty.dtype))):
        return call.op.get_attr("FLegalize")(builder, call)
    if_nan = call.op.name == "relax.not_equal"

    def compute(data: te.Tensor) -> te.Tensor:
        wide = "float64" if str(data.dtype) == "float64" else "float32"

        def element(*at: Any) -> Any:
            is_nan = tirx.isnan(data(*at).astype(wide))
            return is_nan if if_nan else tirx.Not(is_nan)

        return te.compute(data.shape, element, name="compare")

    return builder.call_te(compute, left, primfunc_name_hint=call.op.name.removeprefix("relax."))


COMPARISONS = {f"relax.{name}": _compare for name in ("equal", "not_equal", "greater_equal", "less_equal")}
