"""Sums of a few products by one instruction: which of a CPU's takes an operator, and how loops become one."""

from __future__ import annotations

from collections.abc import Mapping

from relaxc.schedules.dots import Dot
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.ir.types import LoopRV, TirSchedule

__all__ = ["PAIRED", "STEPS", "instruction", "steps_of", "tensorize"]

STEPS = "dot"
"""The parameter of a plan that says how many steps of the depth an instruction takes. Plans without it widen."""

PAIRED = "relaxc_pairs_"
"""What the name of a function of vectors begins with that adds products of pairs of bfloat16; LLVM's name follows.

Its operands are pairs as int32: TVM makes float32 of bfloat16 wherever it computes. The lowering brings it along.
"""


def instruction(operands: tuple[str, ...], accumulate: str, depth: int, cpu: Cpu) -> Dot | None:
    """Return the fastest instruction that adds several products to each sum of a vector; None without one.

    Its `k` divides `depth`, that of the whole sum.
    """
    wanted = (operands, accumulate, 1, cpu.lanes(accumulate))
    fitting = (dot for dot in cpu.dots if (dot.operands, dot.accumulate, dot.m, dot.n) == wanted and dot.intrinsic)
    return max((dot for dot in fitting if dot.k > 1 and depth % dot.k == 0), key=lambda dot: dot.rate, default=None)


def steps_of(parameters: Mapping[str, int]) -> int:
    """Return how many steps of the depth a plan's instruction takes: 1 of a multiply-add."""
    return parameters.get(STEPS, 1)


def tensorize(sch: TirSchedule, lanes: LoopRV, dot: Dot) -> None:
    """Have the loop over `lanes` and the one of `dot.k` steps in it be the instruction.

        for n in lanes, j in dot.k: acc[n] += widen(a[j]) * widen(b[n, j])   →   acc[:] = dot(acc[:], a[:], b[:, :])

    The sums are in registers (`local`); of `a` the elements of one row are repeated for each lane.
    """
    sch.tensorize(lanes, _intrinsic(dot))


def _intrinsic(dot: Dot) -> str:
    """The name of the instruction as an intrinsic of S-TIR, which is made here if it is the first time."""
    from tvm import script
    from tvm.s_tir import TensorIntrin
    from tvm.script import tirx

    name = f"relaxc.{dot.intrinsic}.{'.'.join(dot.operands)}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        (left, right), n, k = dot.operands, dot.n, dot.k
        values = {"left": left, "right": right, "total": dot.accumulate, "intrinsic": dot.intrinsic, "n": n, "k": k}
        lanes = {"few": f"{left}x{k}", "all": f"{left}x{n * k}", "row": f"{right}x{n * k}"}
        namespace = {"T": tirx, **values, **lanes, "sums": f"{dot.accumulate}x{n}"}
        body = _CALLED_ON_PAIRS if is_float(left) else _CALLED
        namespace |= {"function": f"{PAIRED}{dot.intrinsic}", "words": f"int32x{n}"}
        described, called = (script.from_source(f"{_HEAD}{each}", namespace) for each in (_DESCRIBED, body))
        TensorIntrin.register(name, described, called)
    return name


_HEAD = """
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer((k,), left, offset_factor=1),
    B: T.Buffer((n, k), right, offset_factor=1),
    C: T.Buffer((n,), total, offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:n], A[0:k], B[0:n, 0:k])
        T.writes(C[0:n])
"""
_DESCRIBED = """
        for i in T.serial(0, n):
            for j in T.serial(0, k):
                with T.sblock("update"):
                    vi, vj = T.axis.remap("SR", [i, j])
                    C[vi] = C[vi] + T.cast(A[vj], total) * T.cast(B[vi, vj], total)
"""
_CALLED = """
        C[T.ramp(T.int32(0), 1, n)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id(intrinsic),
            C.vload([0], dtype=sums),
            T.reinterpret(T.broadcast(T.reinterpret(A.vload([0], few), dtype=total), n), dtype=all),
            B.vload([0, 0], dtype=row),
            dtype=sums,
        )
"""
_CALLED_ON_PAIRS = """
        C[T.ramp(T.int32(0), 1, n)] = T.call_pure_extern(
            function,
            C.vload([0], dtype=sums),
            T.broadcast(T.reinterpret(A.vload([0], few), dtype="int32"), n),
            T.reinterpret(B.vload([0, 0], dtype=row), dtype=words),
            dtype=sums,
        )
"""
