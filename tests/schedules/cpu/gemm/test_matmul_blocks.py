"""Products with weights in codes by an instruction for bytes: what A's digits keep of it, and where they are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.common.dot_product import STEPS
from relaxc.schedules.cpu.gemm.digits_compute import words_of
from relaxc.schedules.cpu.gemm.matmul_blocks import MatmulBlocks
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.operators import BlockMatmul
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import host_features, resolve, to_tvm
from tests.passes.graphs import graph
from tests.passes.layout.test_pack_block_weights import product
from tests.passes.layout.test_pack_matmul import compiled

pipeline.register()
AVX_VNNI = '{"kind":"llvm","mtriple":"x86_64-linux-gnu","mcpu":"x86-64-v3","mattr":["+avxvnni"],"num-cores":4}'
NEEDS = pytest.mark.skipif(not {"avx512vnni", "avxvnni"} & set(host_features()), reason="needs avx512vnni or avxvnni")

Array = np.ndarray[Any, Any]


def run(x: Array, block: int = 32, bits: int = 4, *, zeros: bool = False) -> tuple[Array, Array, Array]:
    """The product of `x` on this machine, that of numpy in float64, and the sum of its terms' sizes, before relu."""
    build, weights = product(x.shape[1], 40, block, bits, zeros=zeros)
    got, _, (plan,) = compiled(graph(build, x=x.shape), "auto", x)
    assert plan.parameters[STEPS] == 4
    wide = x.astype("float64")
    return got, np.maximum(wide @ weights, 0), np.abs(wide) @ np.abs(weights)


@NEEDS
@pytest.mark.parametrize("power", [-149, -140, -126, -100, 0, 100, 110])
@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (8, True)])
def test_values_of_any_size_keep_their_digits(power: int, bits: int, zeros: bool) -> None:
    """Subnormal ones are whole multiples of 2^-149 and the products are of float32, so that these may differ by one."""
    x = np.ldexp(np.random.default_rng(1).uniform(-128, 128, (1, 96)).astype("float32"), power).astype("float32")
    got, want, size = run(x, bits=bits, zeros=zeros)
    assert (np.abs(got - want) <= 3e-7 * size + 96 * 2.0**-149).all()


@NEEDS
def test_a_large_value_costs_the_digits_of_its_block_alone() -> None:
    x = np.random.default_rng(1).standard_normal((2, 96)).astype("float32")
    x[0, 40] = 1e5
    _, weights = product(96, 40, 32, 4, zeros=False)
    got, want, _ = run(x)
    near = np.abs(got - want)
    assert near[0].max() <= 1e5 * 2**-22 * 32 * np.abs(weights).max() and near[1].max() <= 1e-5
    x[0, 40] = 0
    got, want, _ = run(x)
    assert np.abs(got - want).max() <= 1e-5


@NEEDS
def test_integers_are_multiplied_exactly() -> None:
    """Of up to 22 bits: the scales and the last sum alone round."""
    x = np.random.default_rng(1).integers(-(1 << 20), 1 << 20, (1, 64)).astype("float32")
    got, want, size = run(x, block=16, zeros=True)
    assert (np.abs(got - want) <= 2e-7 * size).all()


@NEEDS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_in_every_column_of_its_row(bad: float) -> None:
    x = np.random.default_rng(1).standard_normal((2, 96)).astype("float32")
    x[1, 70] = bad
    got, want, _ = run(x)
    assert not np.isfinite(got[1]).any()
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=1e-5)


@NEEDS
def test_nothing_but_zeros_gives_zero() -> None:
    got, _, _ = run(np.zeros((1, 64), "float32"))
    assert not got.any()


def test_words_have_four_steps_in_their_bytes() -> None:
    codes = np.arange(16, dtype=np.uint8).reshape(2, 8)
    assert (words_of(codes, 4)[:, 0].view("uint32") == [0x73625140, 0xFBEAD9C8]).all()
    assert words_of(codes, 8)[0].tolist() == [0x03020100, 0x07060504]


@pytest.mark.parametrize(
    ("target", "rows", "taken"),
    [
        ("znver4", 1, 4),
        ("znver4", 8, 4),
        ("x86-64-v4", 1, 1),
        ("x86-64-v3", 1, 1),
        (AVX_VNNI, 2, 4),
        (AVX_VNNI, 8, 1),
    ],
)
def test_the_default_takes_an_instruction_where_its_sums_fit(target: str, rows: int, taken: int) -> None:
    op = BlockMatmul(m=rows, n=330, k=256, block=32, bits=4)
    assert planning.default(op, cpu_of(to_tvm(resolve(target)))).parameters.get(STEPS, 1) == taken


def kernel(target: Any, bits: int) -> tuple[Any, Any]:
    """The PrimFunc of a product by its default plan."""
    op = BlockMatmul(m=1, n=256, k=128, block=32, bits=bits)
    plan = planning.default(op, cpu_of(target))
    codes = np.zeros((op.n, op.k), np.uint8)
    parts = planning.pack_blocks(plan, codes, np.ones((op.n, op.k // op.block), np.float32), None)
    shapes = [((1, op.k), "float32"), *((part.shape, str(part.dtype)) for part in parts)]
    tensors = [te.placeholder(shape, dtype, f"p{at}") for at, (shape, dtype) in enumerate(shapes)]
    made = planning.computation(plan)(*tensors)
    return te.create_prim_func([*tensors, made], index_dtype_override="int64"), plan


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("mcpu", "features", "name"),
    [
        ("znver4", ["+avx512f", "+avx512bw", "+avx512vnni", "+fma"], "vpdpbusd"),
        ("alderlake", ["+avx2", "+fma", "+avxvnni"], "vpdpbusd"),
        ("neoverse-v1", ["+neon", "+dotprod", "+i8mm"], "usdot"),
    ],
)
@pytest.mark.usefixtures("code_to_be_read")
def test_the_code_is_made_of_instructions(mcpu: str, features: list[str], name: str, bits: int) -> None:
    """As many as a word has halves, for each digit and each vector; no sum goes to memory between them."""
    arm = {"mtriple": "aarch64-linux-gnu"} if "neoverse" in mcpu else {}
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "mattr": features, "num-cores": 4, **arm})
    func, plan = kernel(target, bits)
    made = MatmulBlocks().apply(func, target)
    assert isinstance(made, Schedule)
    code = tvm.compile(made.func, target, tir_pipeline=pipeline.NAME).mod.inspect_source("asm")
    lines = [line for line in code.splitlines() if f"{name}\t" in line]
    assert len(lines) >= 3 * (2 if bits == 4 else 1) * plan.parameters["vectors"] * plan.parameters["unroll"]
    assert "rsp)" not in code[code.index(lines[0]) : code.rindex(lines[-1])]


def test_a_cpu_without_the_instruction_declines_its_plan() -> None:
    func, _ = kernel(to_tvm(resolve("znver4")), 4)
    found = MatmulBlocks().apply(func, to_tvm(resolve("x86-64-v4")))
    assert isinstance(found, Declined) and "no instruction" in found.reason
