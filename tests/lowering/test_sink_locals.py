"""Registers that are declared before a launch are its own, and those of plain loops stay."""

from __future__ import annotations

from tvm.script import tirx as T

from tests.lowering.test_cuda_arithmetic import text_of


@T.prim_func(s_tir=True)
def declared_before(a: T.Buffer((64,), "int32"), b: T.Buffer((64,), "int32")):
    with T.sblock("root"):
        for v in range(2):
            kept = T.alloc_local((1,), "int32")
            with T.launch_thread("threadIdx.x", T.int64(32)) as thread:
                kept[0] = a[thread + v * 32] + 1
                b[thread + v * 32] = kept[0] * kept[0]


def test_a_kernel_is_given_no_register() -> None:
    kernel = text_of(declared_before).rpartition("__global__")[2]
    signature, _, body = kernel.partition("{")
    assert signature.count("__restrict__") == 2
    assert "[1];" in body or "kept" in body
