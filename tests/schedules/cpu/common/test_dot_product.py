"""Which instructions take which sums, and that the code of a product is made of them."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm import te

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.common.dot_product import STEPS, instruction
from relaxc.schedules.cpu.gemm.matmul_packed import MatmulPacked
from relaxc.schedules.hardware import Cpu, cpu_of
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.operators import Matmul
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.code_target import to_code_target
from relaxc.service.lowering.target import resolve, to_tvm

pipeline.register()
NARROW = json.dumps({"kind": "llvm", "mcpu": "znver4", "vector_bits": 256})


def row(name: str) -> Cpu:
    return cpu_of(to_tvm(resolve(name)))


@pytest.mark.parametrize(
    ("target", "operands", "depth", "expected"),
    [
        ("znver4", ("uint8", "int8"), 768, "llvm.x86.avx512.vpdpbusd.512"),
        (NARROW, ("uint8", "int8"), 768, "llvm.x86.avx512.vpdpbusd.256"),
        ("znver4", ("uint8", "int8"), 770, ""),
        ("znver4", ("int8", "int8"), 768, ""),
        ("znver4", ("float32", "float32"), 768, ""),
        ("x86-64-v4", ("uint8", "int8"), 768, ""),
        ("znver4", ("bfloat16", "bfloat16"), 768, "llvm.x86.avx512bf16.dpbf16ps.512"),
        (NARROW, ("bfloat16", "bfloat16"), 768, "llvm.x86.avx512bf16.dpbf16ps.256"),
        ("znver4", ("bfloat16", "bfloat16"), 767, ""),
        ("znver4", ("float16", "float16"), 768, ""),
        ("x86-64-v4", ("bfloat16", "bfloat16"), 768, ""),
    ],
)
def test_what_takes_a_sum(target: str, operands: tuple[str, str], depth: int, expected: str) -> None:
    total = "float32" if is_float(operands[0]) else "int32"
    found = instruction(operands, total, depth, row(target))
    assert (found.intrinsic if found else "") == expected


@pytest.mark.parametrize(("operands", "name"), [(("uint8", "int8"), "vpdpbusd"), (("bfloat16",) * 2, "vdpbf16ps")])
@pytest.mark.parametrize(("target", "register"), [("znver4", "%zmm"), (NARROW, "%ymm")])
@pytest.mark.usefixtures("code_to_be_read")
def test_the_code_is_made_of_instructions(target: str, register: str, operands: tuple[str, str], name: str) -> None:
    """Each takes a whole vector of sums, and none of the sums goes to memory within the loop."""
    spec = resolve(target)
    func, op = product(m=24, n=96, k=64, cpu=row(target), operands=operands)
    made = MatmulPacked().apply(func, to_tvm(spec))
    assert isinstance(made, Schedule)
    tile = made.parameters
    code = tvm.compile(made.func, to_code_target(spec), tir_pipeline=pipeline.NAME).mod.inspect_source("asm")
    lines = [line for line in code.splitlines() if name in line]
    assert len(lines) >= tile["rows"] * tile["vectors"] * tile["unroll"]
    assert all(register in line for line in lines)
    first, last = (code.index(lines[0]), code.rindex(lines[-1]))
    assert "(%rsp)" not in code[first:last]
    assert op.k == tile["depth"] * tile[STEPS]


@pytest.mark.parametrize(
    ("mcpu", "features", "operands", "name"),
    [
        ("alderlake", ["+avx2", "+fma", "+avxvnni"], ("uint8", "int8"), "vpdpbusd"),
        ("neoverse-n1", ["+neon", "+dotprod"], ("int8", "int8"), "sdot"),
        ("neoverse-v1", ["+neon", "+dotprod", "+i8mm"], ("uint8", "int8"), "usdot"),
        ("neoverse-v1", ["+neon", "+bf16"], ("bfloat16", "bfloat16"), "bfdot"),
    ],
)
def test_code_for_cpus_that_none_of_us_has(
    mcpu: str, features: list[str], operands: tuple[str, str], name: str
) -> None:
    described = {"kind": "llvm", "mcpu": mcpu, "mattr": features, "num-cores": 4}
    arm = {"mtriple": "aarch64-linux-gnu"} if "neoverse" in mcpu else {}
    target = tvm.target.Target({**described, **arm})
    func, _ = product(m=24, n=96, k=64, cpu=cpu_of(target), operands=operands)
    made = MatmulPacked().apply(func, target)
    assert isinstance(made, Schedule)
    code = tvm.compile(made.func, target, tir_pipeline=pipeline.NAME).mod.inspect_source("asm")
    assert code.count(name) >= made.parameters["rows"] * made.parameters["vectors"]


def test_a_cpu_without_the_instruction_declines_its_plan() -> None:
    func, _ = product(m=24, n=96, k=64, cpu=row("znver4"))
    found = MatmulPacked().apply(func, to_tvm(resolve("x86-64-v4")))
    assert isinstance(found, Declined) and "no instruction" in found.reason


def product(
    *, cpu: Cpu, operands: tuple[str, str] = ("uint8", "int8"), **sizes: int
) -> tuple[tvm.tirx.PrimFunc, Matmul]:
    """The PrimFunc of a product by its default plan."""
    total = "float32" if is_float(operands[0]) else "int32"
    op = Matmul(**sizes, operands=operands, accumulate=total, out=total)
    plan = planning.default(op, cpu)
    a = te.placeholder((op.m, op.k), operands[0], "a")
    b = te.placeholder(planning.packed_shape(plan, (op.k, op.n)), operands[1], "b")
    return te.create_prim_func([a, b, planning.computation(plan)(a, b)]), op
