"""Products by tile registers (AMX): which are made of them, of what code, and that they compute what numpy does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.common.tile_registers import MATRIX
from relaxc.schedules.cpu.gemm import matrix_nest, matrix_plan, packed_plan
from relaxc.schedules.cpu.gemm.matmul_packed import MatmulPacked
from relaxc.schedules.dots import accumulator_of
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Matmul
from relaxc.schedules.template import Declined, Schedule
from relaxc.service import machine
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from tests.guarded import guarded_tensor
from tests.schedules.cpu.tiles import BRAIN, HERE, INSTRUCTIONS, compiled, emulated, loaded, random, row

pipeline.register()
RULE = MatmulPacked()
SIZES = [(1, 33, 64), (13, 90, 64), (16, 16, 64), (17, 100, 192), (31, 64, 64), (33, 64, 128), (70, 90, 64)]
SIZES += [(197, 48, 64), (1057, 40, 64)]
"""The last has tiles behind its last row."""


def product_of(operands: tuple[str, str], m: int, n: int, k: int) -> Matmul:
    total = accumulator_of(operands[1])
    return Matmul(m=m, n=n, k=k, operands=operands, accumulate=total, out=total)


@pytest.mark.parametrize("operands", INSTRUCTIONS, ids=INSTRUCTIONS.values())
def test_the_default_of_many_rows_has_registers_of_tiles(operands: tuple[str, str]) -> None:
    plan = planning.default(product_of(operands, 128, 3072, 768), row("sapphirerapids"))
    assert (plan.parameters[MATRIX], plan.parameters["vectors"], plan.parameters["rows"]) == (2, 2, 32)
    assert planning.refusal(plan.operator, plan.template, plan.parameters, row("sapphirerapids")) == ""


@pytest.mark.parametrize(
    ("name", "operands", "m", "k"),
    [
        ("znver4", BRAIN, 128, 768),
        (json.dumps({**json.loads(HERE), "vector_bits": 256}), BRAIN, 128, 768),
        ("sapphirerapids", BRAIN, 128, 48),
        ("sapphirerapids", BRAIN, 1, 768),
        ("sapphirerapids", ("float16", "float16"), 128, 768),
        ("sapphirerapids", ("float32", "float32"), 128, 768),
    ],
    ids=["no AMX", "narrow vectors", "a depth of no whole steps", "one row", "float16", "float32"],
)
def test_what_stays_in_vectors(name: str, operands: tuple[str, str], m: int, k: int) -> None:
    assert MATRIX not in planning.default(product_of(operands, m, 768, k), row(name)).parameters


@pytest.mark.parametrize("operands", INSTRUCTIONS, ids=INSTRUCTIONS.values())
@pytest.mark.usefixtures("code_to_be_read")
def test_the_code_is_made_of_tile_instructions(operands: tuple[str, str]) -> None:
    """Registers are configured once a task and released at its end, and the sums of a tile go to memory once.

    Operands are streamed, and each of four tiles fetches its part of the next panel: 8 of 32 lines a step.
    """
    op = product_of(operands, 128, 96, 256)
    made = RULE.apply(primfunc(op, row("sapphirerapids")), target := to_tvm(resolve("sapphirerapids")))
    assert isinstance(made, Schedule)
    code = tvm.compile(made.func, target, tir_pipeline=pipeline.NAME).mod.inspect_source("asm")
    assert code.count(INSTRUCTIONS[operands]) >= 4 and "vdpbf16ps" not in code and "vpdpbusd" not in code
    assert (code.count("\tldtilecfg"), code.count("\ttilerelease")) == (1, 1)
    assert code.count("\ttileloaddt1") >= 4 and "\ttileloadd\t" not in code
    assert code.count("\tprefetcht0") == 2 * code.count(INSTRUCTIONS[operands])
    assert code.count("\ttilestored") == code.count("\ttilezero") <= code.count(INSTRUCTIONS[operands])


def test_every_point_is_one_and_others_are_refused() -> None:
    cpu, op = row("sapphirerapids"), product_of(BRAIN, 197, 300, 128)
    points = list(matrix_plan.points(op, cpu))
    assert len(points) >= 8 and {matrix_plan.refusal(op, point, cpu) for point in points} == {""}
    assert MATRIX in planning.space(op, cpu)[0].parameters
    wrongs = {"dot": 4, "block": 8, "vectors": 3, "rows": 33, "padded": 196, "tiles": 2, "panels": 7, "unroll": 2}
    refused = [matrix_plan.refusal(op, {**points[0], name: value}, cpu) for name, value in wrongs.items()]
    assert all(refused) and len(set(refused)) >= 6
    narrow = next(point for point in points if point["vectors"] == 1)
    four = {**narrow, "rows": 4, "padded": 200, "tiles": 1, MATRIX: 3}  # 2, 2 and none, whose sums have no place
    assert matrix_plan.refusal(op, {**four, "rows": 5}, cpu) == ""
    assert "have no rows" in matrix_plan.refusal(op, four, cpu)
    assert "no tile instruction" in matrix_plan.refusal(op, points[0], row("znver4"))
    assert matrix_plan.refusal(op, packed_plan.default(op, cpu), cpu)


def test_a_cpu_without_the_instruction_declines_the_plan() -> None:
    func = primfunc(product_of(BRAIN, 64, 96, 64), row("sapphirerapids"))
    found = RULE.apply(func, to_tvm(resolve("znver4")))
    assert isinstance(found, Declined) and "no instruction" in found.reason


@pytest.mark.parametrize("operands", INSTRUCTIONS, ids=INSTRUCTIONS.values())
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products(operands: tuple[str, str], m: int, n: int, k: int) -> None:
    """On the CPU itself; `test_emulated_products` asks the same of every other."""
    flag = "amx-bf16" if operands == BRAIN else "amx-int8"
    if flag not in machine.cpu().features:
        pytest.skip(f"this CPU has no {flag.replace('-', '_')}, or the kernel refuses it")
    op, cpu = product_of(operands, m, n, k), row(HERE)
    for parameters in matrix_plan.points(op, cpu):
        agree(op, built(op, cpu, parameters), parameters)


@pytest.mark.sampled(most=6)
@pytest.mark.parametrize("operands", INSTRUCTIONS, ids=INSTRUCTIONS.values())
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_emulated_products(
    operands: tuple[str, str], m: int, n: int, k: int, emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same code, with each tile instruction a call: wrong registers and configurations abort."""
    monkeypatch.setattr(matrix_nest, "with_code", emulated)
    op, cpu = product_of(operands, m, n, k), row(HERE)
    for i, parameters in enumerate(list(matrix_plan.points(op, cpu))[::3]):
        agree(op, loaded(built(op, cpu, parameters), tmp_path / f"{i}.so", emulator), parameters)


def primfunc(op: Matmul, cpu: Cpu, parameters: dict[str, int] | None = None) -> tvm.tirx.PrimFunc:
    """The product by these parameters, or by its default plan."""
    plan = planning.default(op, cpu) if parameters is None else planning.planned(op, RULE.name, parameters, cpu)
    a = te.placeholder((op.m, op.k), op.operands[0], "a")
    b = te.placeholder(planning.packed_shape(plan, (op.k, op.n)), op.operands[1], "b")
    return te.create_prim_func([a, b, planning.computation(plan)(a, b)])


def built(op: Matmul, cpu: Cpu, parameters: dict[str, int]) -> Any:
    """Return the product by these parameters, compiled for `HERE`."""
    return compiled(RULE, primfunc(op, cpu, parameters))


def agree(op: Matmul, module: Any, parameters: dict[str, int]) -> None:
    """The library's product of random operands is numpy's: exact in integers."""
    rng = np.random.default_rng(op.m)
    left, right = (
        random(rng, dtype, shape) for dtype, shape in zip(op.operands, ((op.m, op.k), (op.k, op.n)), strict=True)
    )
    plan = planning.planned(op, RULE.name, parameters, row(HERE))
    out = tvm.runtime.tensor(np.full((op.m, op.n), -1, op.out))
    module["main"](guarded_tensor(left, "end"), tvm.runtime.tensor(planning.pack(plan, right)), out)
    want = left.astype("float64") @ right.astype("float64")
    scale = 0.0 if op.out == "int32" else 1e-6 * op.k
    np.testing.assert_allclose(out.numpy(), want, rtol=0, atol=scale)
