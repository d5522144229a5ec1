"""An exponential for weights that are rounded to 16 bits: half of the instructions of one that is right to the last."""

from __future__ import annotations

import struct

from tvm import tirx

from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.types import Expr

__all__ = ["CODE", "exponential", "is_for"]

_NAME = "relaxc_exponential_of_weights"

_LANES = 16
_NEEDS = "avx512dq"

_LOG2_E = 1.44269502162933349609375
_COEFFICIENTS = (0.013426684774458408, 0.052242472767829895, 0.241280198097229, 0.6930448412895203, 1.0)
"""Of a polynomial that is 2^x for 0 <= x <= 1 to 2.9e-6 of it, and 1 at 0: half a step of bfloat16 is 2e-3 of it."""


def is_for(cpu: Cpu, lanes: int) -> bool:
    """Return whether `cpu` has the instructions, and vectors of `lanes` are as long as theirs."""
    return lanes == _LANES and _NEEDS in cpu.features


def exponential(value: Expr) -> Expr:
    """Return `exp(value)` of a vector, by what `CODE` defines."""
    return tirx.call_pure_extern(str(value.ty.dtype), _NAME, value)


def _code() -> str:
    """LLVM IR of 2^(x log2 e) = 2^floor(y) 2^(y - floor(y)): VREDUCEPS gives the second exponent, and 0 of infinity;
    VSCALEFPS multiplies by the first, gives 0 of -inf, and NaN of NaN.
    """
    vector = f"<{_LANES} x float>"
    reduce, scale = (f"@llvm.x86.avx512.mask.{name}.ps.512" for name in ("reduce", "scalef"))
    first, *others = (f"splat (float 0x{_bits(each)})" for each in _COEFFICIENTS)
    steps = []
    for i, each in enumerate(others):
        before = first if i == 0 else f"%p{i - 1}"
        steps.append(
            f"  %p{i} = call {vector} @llvm.fma.v{_LANES}f32({vector} {before}, {vector} %rest, {vector} {each})"
        )
    return f"""declare {vector} {reduce}({vector}, i32 immarg, {vector}, i16, i32 immarg)
declare {vector} {scale}({vector}, {vector}, {vector}, i16, i32 immarg)
declare {vector} @llvm.fma.v{_LANES}f32({vector}, {vector}, {vector})
define {vector} @{_NAME}({vector} %x) alwaysinline {{
  %y = fmul {vector} %x, splat (float 0x{_bits(_LOG2_E)})
  %rest = call {vector} {reduce}({vector} %y, i32 9, {vector} zeroinitializer, i16 -1, i32 4)
{chr(10).join(steps)}
  %all = call {vector} {scale}({vector} %p{len(others) - 1}, {vector} %y, {vector} zeroinitializer, i16 -1, i32 4)
  ret {vector} %all
}}
"""


def _bits(value: float) -> str:
    """How LLVM IR writes a float: the bits of the double that it is exactly."""
    (single,) = struct.unpack("<f", struct.pack("<f", value))
    return struct.pack(">d", single).hex().upper()


CODE = _code()
