"""Functions that TVM has no code for on a CPU (sinh, cosh), or spells out in a logarithm that loses small numbers.

They are the C library's, which CUDA has under the same names.
"""

from __future__ import annotations

from tvm import relax, te, tirx

__all__ = ["FUNCTIONS"]


def _of_c(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    name, dtype = call.op.name.removeprefix("relax."), str(call.ty.dtype)
    wide, symbol = (dtype, name) if dtype == "float64" else ("float32", f"{name}f")

    def compute(data: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.PrimExpr:
            return tirx.call_pure_extern(wide, symbol, data(*at).astype(wide)).astype(dtype)

        return te.compute(data.shape, element, name=name)

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)


FUNCTIONS = {f"relax.{name}": _of_c for name in ("acosh", "asinh", "atanh", "cosh", "sinh")}
