"""Kernels that TVM writes as CUDA text: which arithmetic is ours, and which stays."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from relaxc.service.lowering import pipeline
from relaxc.service.lowering.apply import finish
from relaxc.service.lowering.build import KERNEL
from relaxc.service.lowering.code_target import to_code_target
from relaxc.service.lowering.cuda_arithmetic import CudaArithmetic, with_extremes
from relaxc.service.lowering.target import resolve
from relaxc.service.process.environment import environment_variable

SPEC = resolve("cuda-sm90")


def rewritten(*tensors: Any, kind: str = "cuda") -> str:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"} if kind == "cuda" else kind)
    made = te.create_prim_func(list(tensors), "int64").with_attr("target", target)
    return str(CudaArithmetic()(tvm.IRModule({"main": made}))["main"].script()).replace("v_i0", "v_i")


def text_of(func: Any) -> str:
    """The CUDA text of a scheduled PrimFunc, as a build gives it to nvcc."""
    pipeline.register()
    module = tvm.IRModule({KERNEL: finish(func, SPEC, 2).with_attr("global_symbol", KERNEL)})
    with environment_variable("TVM_COMPILE_FORCE_FALLBACK", "1"):
        built = tvm.tirx.build(module, to_code_target(SPEC), pipeline=pipeline.NAME)
    source = with_extremes(built.imports[0].inspect_source("cuda"))
    assert source.startswith("// The larger") == ("relaxc_" in source)
    return source


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_arithmetic_of_data_is_unsigned(dtype: str) -> None:
    x, at = te.placeholder((8,), dtype, "x"), te.placeholder((8,), "int64", "at")
    found = rewritten(x, at, te.compute((8,), lambda i: x(at(i) + 1) * tirx.const(3, dtype) - x(7 - i)))
    assert found.count(f'T.Cast("{dtype}"') == 2 and found.count(f'T.Cast("u{dtype}"') == 4
    assert "x[at[v_i] + T.int64(1)]" in found and "x[T.int64(7) - v_i]" in found


def test_what_loops_count_floats_and_cpus_stay() -> None:
    x, y = te.placeholder((8,), "int32", "x"), te.placeholder((8,), "float32", "y")
    one = tirx.const(1, "int32")
    assert "uint" not in rewritten(x, te.compute((8,), lambda i: i * 2 + 1))
    assert "uint" not in rewritten(y, te.compute((8,), lambda i: y(i) + 1.0))
    kept = rewritten(x, y, te.compute((8,), lambda i: te.max(y(i), (x(i) + one).astype("float32"))), kind="llvm")
    assert "relaxc_max" not in kept and "uint32" not in kept


@pytest.mark.parametrize(
    ("was", "became", "casts"),
    [("uint32", "int32", True), ("int32x4", "uint32x4", True), ("int8x4", "int32", False), ("int32", "uint8x4", False)],
)
def test_bits_are_taken_for_an_integer_of_the_other_sign_alone(was: str, became: str, casts: bool) -> None:
    value, out = tirx.Var("value", was), tirx.decl_buffer((4,), became, "out")
    store = tirx.BufferStore(out, tirx.reinterpret(became, value), [0])
    func = tirx.PrimFunc([value, out], store).with_attr("target", tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))
    found = CudaArithmetic()(tvm.IRModule({"main": func}))["main"].body.value
    assert isinstance(found, tirx.Cast) == casts


@T.prim_func(s_tir=True)
def vectors(
    a: T.Buffer((64,), "float16"), b: T.Buffer((64,), "float32"), c: T.Buffer((64,), "int32"),
    d: T.Buffer((64,), "float16"), e: T.Buffer((64,), "float32"), f: T.Buffer((64,), "int32"),
    g: T.Buffer((64,), "int8"),
):  # fmt: skip
    for i in T.thread_binding(16, thread="threadIdx.x"):
        for lane in T.vectorized(4):
            d[i * 4 + lane] = T.max(a[i * 4 + lane], T.float16(0))
        for lane in T.vectorized(4):
            e[i * 4 + lane] = T.min(b[i * 4 + lane], e[i * 4 + lane])
        for lane in T.vectorized(4):
            f[i * 4 + lane] = c[i * 4 + lane] * 3
        for lane in range(4):
            g[i * 4 + lane] = T.Cast("int8", T.min(T.max(b[i * 4 + lane], T.float32(-128)), T.float32(127)))


def test_vectors_and_bytes() -> None:
    source = text_of(vectors)
    assert source.count("= relaxc_max(") == 4 and source.count("= relaxc_min(") == 4
    assert "(uint)" in source
    (quantized,) = (line for line in source.splitlines() if "(signed char)" in line and "g_ptr" in line)
    assert "min(max(" in quantized and "relaxc" not in quantized


@T.prim_func(s_tir=True)
def compared(a: T.Buffer((16,), "int32"), b: T.Buffer((16,), "bool"), c: T.Buffer((16,), "int32")):
    for i in T.thread_binding(16, thread="threadIdx.x"):
        b[i] = T.reinterpret("int32", T.reinterpret("uint32", a[i] + 1)) > a[i]
        c[i] = (a[i] + 1) * (a[i] + 1)


def test_bits_of_a_sum_have_no_address_and_what_is_bound_once_wraps() -> None:
    source = text_of(compared)
    source = source[source.rindex('extern "C"') :]
    assert "*(" not in source.replace("int*", "")
    assert all("+ 1" not in line for line in source.splitlines()), source
    assert source.count("+ ((uint)1)") >= 2 and ") * (" in source
