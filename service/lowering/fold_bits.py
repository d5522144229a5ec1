"""The bits of a literal, which code generators cannot take: LLVM's has 0 for a null pointer, CUDA's the address of `7`.

    reinterpret(int64, reinterpret(uint64, 0))          →  0
    reinterpret(float32, reinterpret(uint32, 0.0))      →  0.0

Legalization hides integers behind their bits (`legalize_comparisons.py`), and fusion may show that one is a constant;
`keep_infinite.py` hides zeros.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, PrimType

from relaxc.schedules.ir import tir

__all__ = ["FoldBits"]


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.FoldBits")
class FoldBits:
    """Rewrites PrimFuncs behind every pass of TVM, which would draw conclusions from the literals."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        return func.with_body(tvm_ffi.structural_map(func.body, (Call, _folded)))


def _is_of_literal(call: Any) -> bool:
    """Whether these are the bits of an integer, as a number: a pointer may be made of one."""
    if not (call.op.same_as(Op.get("tirx.reinterpret")) and isinstance(call.ty, PrimType)):
        return False
    return isinstance(call.args[0], tirx.IntImm)


def _folded(call: Any) -> Any:
    """Return the literal that has these bits: 0 of any dtype, integers but those of 64 bits whose first is set, and
    floats that were hidden.
    """
    if not _is_of_literal(call):
        inner = call.args[0] if call.op.same_as(Op.get("tirx.reinterpret")) else None
        literal = inner.args[0] if isinstance(inner, Call) and inner.op.same_as(call.op) else None
        same = isinstance(literal, tirx.FloatImm) and literal.ty.dtype == call.ty.dtype
        return literal if same else call
    dtype, value = str(call.ty.dtype), int(call.args[0].value)
    if value == 0:
        return tir.zero(call)
    kind, bits = dtype.rstrip("0123456789"), int(call.ty.dtype.bits)
    if kind not in ("int", "uint") or (value < 0 and bits == 64):
        return call
    unsigned = value % (1 << bits)
    return tirx.const(unsigned - (1 << bits) if kind == "int" and unsigned >> bits - 1 else unsigned, dtype)
