"""CUDA reads and writes a vector of bool as its bytes, in arguments and in shared memory."""

from __future__ import annotations

import re

import pytest
from tvm.script import tirx as T

from relaxc.service.errors import CompileFailed
from relaxc.service.lowering.cuda_accesses import check_accesses
from tests.lowering.test_cuda_arithmetic import text_of


@T.prim_func(s_tir=True)
def masked(
    a: T.Buffer((128,), "bool"), b: T.Buffer((128,), "float32"), c: T.Buffer((128,), "float32"),
    d: T.Buffer((128,), "bool"),
):  # fmt: skip
    s = T.alloc_buffer((128,), "bool", scope="shared")
    for i in T.thread_binding(32, thread="threadIdx.x"):
        for lane in T.vectorized(2):
            c[i * 2 + lane] = T.Select(a[i * 2 + lane], b[i * 2 + lane], T.float32(0))
        for lane in T.vectorized(4):
            s[i * 4 + lane] = a[124 - i * 4 + lane]
        for lane in T.vectorized(4):
            d[i * 4 + lane] = (b[i * 4 + lane] > T.float32(0)) & s[i * 4 + lane]


def test_vectors_of_bool_are_read_and_written_as_bytes() -> None:
    source = text_of(masked)
    check_accesses(source)
    assert "*(ushort" not in source
    assert "*(char2*)(((signed char*)a_ptr) +" in source  # two bytes for two lanes
    assert re.search(r"\*\(int\*\)\(\(\(signed char\*\)d_ptr\) \+ .*\) = ", source)  # four for four


def test_a_scalar_of_bool_stays() -> None:
    @T.prim_func(s_tir=True)
    def scalars(a: T.Buffer((32,), "bool"), b: T.Buffer((32,), "float32")):
        for i in T.thread_binding(32, thread="threadIdx.x"):
            b[i] = T.Select(a[i], T.float32(1), T.float32(0))

    assert "signed char" not in text_of(scalars).rpartition("__global__")[2]


_SIGNATURE = 'extern "C" __global__ void k_kernel({pointer}* __restrict__ x_ptr, float* __restrict__ y_ptr) {{\n'


@pytest.mark.parametrize(
    ("pointer", "access"),
    [
        ("bool", "ushort2 v = *(ushort2*)(x_ptr + i);"),
        ("bool", "*(ushort4*)(x_ptr + (i * 4)) = v;"),
        ("signed char", "short2 v = *(short2*)(x_ptr + i);"),
        ("half", "float2 v = *(float2*)(x_ptr + i);"),
        ("float", "char4 v = *(char4*)(x_ptr + i);"),
        ("bool", "__shared__ alignas(64) bool s_ptr[64];\n  ushort2 v = *(ushort2*)(s_ptr + i);"),
    ],
)
def test_a_vector_of_elements_of_another_size_is_refused(pointer: str, access: str) -> None:
    with pytest.raises(CompileFailed, match="would read vectors of"):
        check_accesses(_SIGNATURE.format(pointer=pointer) + f"  {access}\n}}\n")


@pytest.mark.parametrize(
    ("pointer", "access"),
    [
        ("float", "float2 v = *(float2*)(x_ptr + i);"),
        ("half", "uint2 v = *(uint2*)(x_ptr + i);"),
        ("signed char", "int v = *(int*)(x_ptr + i);"),
        ("bool", "char2 v = *(char2*)(((signed char*)x_ptr) + i);"),
        ("int64_t", "longlong2 v = *(longlong2*)(x_ptr + i);"),
    ],
)
def test_what_has_the_size_of_its_memory_passes(pointer: str, access: str) -> None:
    check_accesses(_SIGNATURE.format(pointer=pointer) + f"  {access}\n}}\n")
