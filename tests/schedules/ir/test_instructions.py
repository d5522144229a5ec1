"""The instruction that a scheduled PrimFunc multiplies with, read from its code."""

from __future__ import annotations

import pytest
from tvm.script import tirx as T

from relaxc.schedules.ir.instructions import instruction_of


def of_text(source: str) -> object:
    @T.prim_func
    def main(a: T.handle) -> None:
        A = T.match_buffer(a, (4,), "float32")
        T.evaluate(T.call_extern("int32", source, A.data))

    return main


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (
            '"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0"',
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16",
        ),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {",
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16",
        ),
        ("wgmma.fence.sync.aligned; // no product", None),
        ("call void @llvm.x86.tilezero(i8 0)\ncall void @llvm.x86.tdpbf16ps(i8 0, i8 4, i8 6)", "llvm.x86.tdpbf16ps"),
        ("relaxc_pairs_llvm.x86.avx512bf16.dpbf16ps.512", "llvm.x86.avx512bf16.dpbf16ps.512"),
        ("a = b + c", None),
    ],
)
def test_the_text_of_a_kernel_says_it(source: str, wanted: str | None) -> None:
    assert instruction_of(of_text(source)) == wanted


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "f16"), ("bfloat16", "bf16")])
def test_a_text_for_two_dtypes_is_read_for_the_kernel_s(dtype: str, kind: str) -> None:
    source = " ".join(f"mma.sync.aligned.m16n8k16.row.col.f32.{each}.{each}.f32" for each in ("f16", "bf16"))

    @T.prim_func
    def main(a: T.handle) -> None:
        A = T.match_buffer(a, (4,), dtype)
        T.evaluate(T.call_extern("int32", source, A.data))

    assert instruction_of(main) == f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"


def test_a_cpu_s_is_an_intrinsic() -> None:
    @T.prim_func
    def dots(c: T.handle) -> None:
        C = T.match_buffer(c, (16,), "int32")
        C[T.ramp(0, 1, 16)] = T.call_llvm_pure_intrin(
            "int32x16",
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
            C[T.ramp(0, 1, 16)],
            C[T.ramp(0, 1, 16)],
            C[T.ramp(0, 1, 16)],
        )

    @T.prim_func
    def prefetched(c: T.handle) -> None:
        C = T.match_buffer(c, (16,), "float32")
        C[0] = T.exp(C[0])

    assert instruction_of(dots) == "llvm.x86.avx512.vpdpbusd.512"
    assert instruction_of(prefetched) is None
