"""`cuda.gemm_sm90` of bytes: sums in int32, what is fused with them, and its machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import tvm
from tvm import relax, te
from tvm.relax import op

from benchmarks.gpu.fused import prim_func_of
from benchmarks.gpu.gemm_bytes_cases import EPILOGUES, BytesCase, prim_func
from relaxc.schedules.cuda.gemm.form import match
from relaxc.schedules.cuda.gemm.gemm_sm80 import GemmSm80
from relaxc.schedules.cuda.gemm.gemm_sm90 import GemmSm90
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.passes.graphs import graph

TARGET = to_tvm(resolve("cuda-sm90"))
RULE = GemmSm90()
BASE = BytesCase(100, 72, 144)


def of_epilogue(epilogue: str) -> BytesCase:
    out = {"none": "int32", "zero": "int32"}.get(epilogue, "uint8" if "quantize" in epilogue else "float16")
    return replace(BASE, epilogue=epilogue, out=out)


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("left", ["int8", "uint8"])
def test_it_takes_products_with_what_is_fused(epilogue: str, left: str) -> None:
    func = prim_func(replace(of_epilogue(epilogue), left=left))
    found = match(func)
    assert not isinstance(found, Declined)
    assert (found.m, found.n, found.k, found.n_major, found.sums, found.atom) == (100, 72, 144, False, "int32", 128)
    assert "int2 sums" in found.epilogue
    assert isinstance(RULE.apply(func, TARGET), Schedule)


def test_bytes_are_rounded_as_the_reference_says() -> None:
    """By the function that `test_functions.py` compares with a division."""
    found = match(prim_func(of_epilogue("quantize")))
    assert len(re.findall(r"quantized\(v\w+, v\w+, v\w+, 0, 255\)", found.epilogue)) == 2
    assert found.expensive


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(BASE, n=60), "multiples of 8"),
        (replace(BASE, k=24), "16 of bytes"),
        (replace(BASE, m=1 << 16, n=1 << 15, epilogue="none", out="int32"), "2\\^31"),
    ],
)
def test_it_declines(case: BytesCase, reason: str) -> None:
    found = RULE.apply(prim_func(case), TARGET)
    assert isinstance(found, Declined) and re.search(reason, found.reason)


def test_bytes_by_rows_are_declined() -> None:
    module = graph(lambda x, w: op.matmul(x, w, out_dtype="int32"), x=("int8", (64, 64)), w=("int8", (64, 64)))
    found = RULE.apply(prim_func_of(module), TARGET)
    assert isinstance(found, Declined) and "by rows" in found.reason


def test_operands_that_another_dtype_has_wrapped_are_declined() -> None:
    """`int32(int8(x))` of a uint8 is not `int32(x)`."""
    x, w = te.placeholder((64, 64), "uint8"), te.placeholder((64, 64), "int8")
    k = te.reduce_axis((0, 64))
    product = lambda m, n: te.sum(x[m, k].astype("int8").astype("int32") * w[n, k].astype("int32"), axis=k)  # noqa: E731
    found = RULE.apply(te.create_prim_func([x, w, te.compute((64, 64), product)]), TARGET)
    assert isinstance(found, Declined) and "plain elements" in found.reason


def test_a_cast_of_what_may_lie_outside_is_declined() -> None:
    """A float becomes a byte only where the PrimFunc has clamped it."""
    inputs = [relax.Var("x", relax.TensorType((64, 64), "int8")), relax.Var("w", relax.TensorType((64, 64), "int8"))]
    from relaxc.schedules.cuda.gemm.compute import by_columns

    block = relax.BlockBuilder()
    with block.function("main", inputs):
        with block.dataflow():
            value = op.astype(op.astype(block.emit_te(by_columns, *inputs), "float32"), "int8")
            result = block.emit_output(block.normalize(value))
        block.emit_func_output(result)
    found = RULE.apply(prim_func_of(block.get()), TARGET)
    assert isinstance(found, Declined) and "casts float32 to int8" in found.reason


def test_the_template_of_floats_declines_bytes() -> None:
    found = GemmSm80().apply(prim_func(BASE), to_tvm(resolve("cuda-sm80")))
    assert isinstance(found, Declined)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("left", ["int8", "uint8"])
def test_the_machine_code_multiplies_on_tensor_cores(left: str, disassembled) -> None:
    sass = disassembled(RULE.apply(prim_func(replace(of_epilogue("quantize"), left=left)), TARGET).func)
    assert f"IGMMA.64x64x32.{'U8' if left == 'uint8' else 'S8'}.S8" in sass and "UTMALDG" in sass


def test_sums_that_clusters_share_are_integers() -> None:
    made = RULE.apply(prim_func(replace(BASE, m=64, n=64, k=1024, epilogue="none", out="int32")), TARGET)
    point = {**made.parameters, "splits": 4}
    shared = RULE.apply(prim_func(replace(BASE, m=64, n=64, k=1024, epilogue="none", out="int32")), TARGET, point)
    assert isinstance(shared, Schedule) and "typedef int Sum" in str(shared.func)
    assert isinstance(shared.func, tvm.tirx.PrimFunc)
