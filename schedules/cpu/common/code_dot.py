"""Sums of products of codes and signed bytes by the instruction for bytes, codes unpacked in registers."""

from __future__ import annotations

from relaxc.schedules.dots import Dot
from relaxc.schedules.ir.types import LoopRV, TirSchedule

__all__ = ["tensorize_codes"]


def tensorize_codes(sch: TirSchedule, lanes: LoopRV, dot: Dot, bits: int) -> None:
    """Have the loop over `lanes`, with those of the codes of a word in it, be one instruction, or two for 4 bits.

        for n in lanes, h in 2, j in 4: acc[n] += a[4 h + j] * (w[n] >> (8 j + 4 h) & 15)
        →   acc[:] = dot(acc[:], w[:] & 0x0f0f0f0f, a[0:4]);   acc[:] = dot(acc[:], w[:] >> 4 & 0x0f0f0f0f, a[4:8])

    The sums are in registers (`local`), and a's bytes are repeated for each lane. Codes of 8 bits have no loop `h`.
    """
    sch.tensorize(lanes, _intrinsic(dot, bits))


def _intrinsic(dot: Dot, bits: int) -> str:
    """The name of the instruction on codes as an intrinsic of S-TIR, which is made here if it is the first time."""
    from tvm import script
    from tvm.s_tir import TensorIntrin
    from tvm.script import tirx

    name = f"relaxc.{dot.intrinsic}.codes{bits}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        values = {
            "intrinsic": dot.intrinsic,
            "n": dot.n,
            "codes": f"uint8x{dot.k * dot.n}",
            "digits": f"int8x{dot.k * dot.n}",
        }
        namespace = {"T": tirx, **values, "words": f"int32x{dot.n}", "steps": 32 // bits}
        described, called = (_DESCRIBED_4, _CALLED_4) if bits == 4 else (_DESCRIBED_8, _CALLED_8)
        made = (script.from_source(f"{_HEAD}{each}", namespace) for each in (described, called))
        TensorIntrin.register(name, *made)
    return name


_HEAD = """
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer((steps,), "int8", offset_factor=1),
    W: T.Buffer((n,), "int32", offset_factor=1),
    C: T.Buffer((n,), "int32", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:n], A[0:steps], W[0:n])
        T.writes(C[0:n])
"""
_DESCRIBED_4 = """
        for i, h, j in T.grid(T.int64(n), T.int64(2), T.int64(4)):
            with T.sblock("update"):
                vi, vh, vj = T.axis.remap("SRR", [i, h, j])
                C[vi] = C[vi] + T.cast(A[vh * T.int64(4) + vj], "int32") * T.bitwise_and(
                    T.shift_right(W[vi], T.cast(vj, "int32") * 8 + T.cast(vh, "int32") * 4), T.int32(15)
                )
"""
_DESCRIBED_8 = """
        for i, j in T.grid(T.int64(n), T.int64(4)):
            with T.sblock("update"):
                vi, vj = T.axis.remap("SR", [i, j])
                C[vi] = C[vi] + T.cast(A[vj], "int32") * T.bitwise_and(
                    T.shift_right(W[vi], T.cast(vj, "int32") * 8), T.int32(255)
                )
"""
_CALL = """
        C[T.ramp(T.int32(0), 1, n)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id(intrinsic),
            C.vload([0], dtype=words),
            T.reinterpret({codes}, dtype=codes),
            T.reinterpret(T.broadcast(T.reinterpret(A.vload([{step}], "int8x4"), dtype="int32"), n), dtype=digits),
            dtype=words,
        )
"""
_MASK = "T.broadcast(T.int32(0x0F0F0F0F), n)"
_CALLED_4 = _CALL.format(codes=f"T.bitwise_and(W.vload([0], dtype=words), {_MASK})", step=0) + _CALL.format(
    codes=f"T.bitwise_and(T.shift_right(W.vload([0], dtype=words), T.broadcast(T.int32(4), n)), {_MASK})", step=4
)
_CALLED_8 = _CALL.format(codes="W.vload([0], dtype=words)", step=0)
