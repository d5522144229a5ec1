"""Attention on pairs of bfloat16, by vectors and by tile registers: it computes what numpy does of rounded operands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.attention import word_exponential, word_plan, word_products
from relaxc.schedules.cpu.attention.attention import TiledAttention
from relaxc.schedules.cpu.common.tile_registers import MATRIX
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import loop, ramp, with_code
from relaxc.schedules.template import Declined, Schedule
from relaxc.service import machine
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.lowering.vector_functions import VECTOR_MATH
from tests.guarded import guarded_tensor
from tests.schedules.cpu.attention.test_attention import INFINITY, Case, expected, function, inputs, operator
from tests.schedules.cpu.tiles import emulated, loaded, row

pipeline.register()
BRAIN = "bfloat16"
TILES = json.dumps({"kind": "llvm", "mcpu": "x86-64-v4", "features": ["amx-tile", "amx-bf16"], "cores": 2})
VECTORS = json.dumps({"kind": "llvm", "mcpu": "x86-64-v4", "features": ["avx512bf16"], "cores": 2})


def built(case: Case, name: str, parameters: dict[str, int]) -> Any:
    plan = planning.planned(operator(case), TiledAttention.name, parameters, row(name))
    found = TiledAttention().apply(function(case, name, plan), to_tvm(resolve(name)))
    assert isinstance(found, Schedule), found
    func = found.func.with_attr({"tirx.is_scheduled": True, VECTOR_MATH: True})
    return tvm.compile(tvm.IRModule({"main": func}), to_tvm(resolve(name)), tir_pipeline=pipeline.NAME)


SHARED = {"dtype": "bfloat16", "scale": 0.125}
CASES = {
    "bert": Case(**SHARED, queries=128, keys=128, depth=64, width=64, merged=True, mask="where", masked="zero"),
    "vit": Case(**SHARED, queries=197, keys=197, depth=64, width=64, merged=True),
    "narrow": Case(**SHARED, batch=2, queries=5, keys=3, heads=3, depth=8, width=16),
    "odd": Case(**SHARED, queries=49, keys=65, depth=80, width=32, mask="add"),
    "deep": Case(**SHARED, queries=33, keys=31, depth=67, width=48, mask="keys"),
    "cross": Case(**SHARED, queries=20, keys=300, depth=32, width=64, mask="add", masked="never_nan"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_emulated_tiles(case: Case, emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_products, "with_code", emulated)
    for i, parameters in enumerate(several(case, TILES)):
        agree(case, loaded(built(case, TILES, parameters), tmp_path / f"{i}.so", emulator))


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("name", [TILES, VECTORS], ids=["amx-bf16", "avx512bf16"])
def test_instructions(name: str, case: Case) -> None:
    """On the CPU itself."""
    if lacking := {"amx-bf16", "avx512bf16"} & set(json.loads(name)["features"]) - machine.cpu().features:
        pytest.skip(f"this CPU has no {lacking.pop().replace('-', '_')}, or the kernel refuses it")
    for parameters in several(case, name):
        agree(case, built(case, name, parameters))


def several(case: Case, name: str) -> list[dict[str, int]]:
    """The default on pairs, and some other points: of each number of vectors, and of each of steps."""
    cpu, op = row(name), operator(case)
    points = list(word_plan.points(op, cpu))
    kept = {(p["vectors"], p["block"], p.get(MATRIX)): p for p in points}
    assert points and {word_plan.refusal(op, p, cpu) for p in points} == {""}
    return [word_plan.default(op, cpu) or {}, *list(kept.values())[::3]]


def agree(case: Case, module: Any, arrays: Sequence[Any] | None = None) -> None:
    """Raise AssertionError where the result is further from numpy's than the rounding of weights takes it."""
    *arrays, result = inputs(case, function(case, "x86-64-v4")) if arrays is None else arrays
    out = tvm.runtime.tensor(np.full(result.shape, 12345.0, "float32"))
    module["main"](*(guarded_tensor(each, "end") for each in arrays), out)
    wide = [each.astype("float32") if each.dtype == BRAIN else each for each in arrays]
    apart = expected(case, *wide[:2], abs(wide[2]), *wide[3:]) * 2.0**-8 + 1e-5
    want, got = expected(case, *wide), out.numpy()
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    assert np.all(abs(got[finite] - want[finite]) <= apart[finite])


@pytest.mark.parametrize("name", [TILES, VECTORS], ids=["tiles", "vectors"])
@pytest.mark.parametrize("masked", ["nan", "zero", "never_nan"])
def test_rows_without_a_softmax(
    masked: str, name: str, emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of -∞ and NaN scores, and values that are not finite behind weights of 0, in one step and in several."""
    if name == VECTORS and "avx512bf16" not in machine.cpu().features:
        pytest.skip("this CPU has no avx512bf16")
    monkeypatch.setattr(word_products, "with_code", emulated)
    case = Case(**SHARED, queries=21, keys=67, mask="add", masked=masked)
    arrays = inputs(case, function(case, "x86-64-v4"))
    mask = arrays[3]
    mask[:, 0, :, 3] = -INFINITY  # everything is masked
    mask[:, 0, :40, 5] = -INFINITY  # the first keys are
    mask[:, :, 9, 7] = np.nan
    mask[:, 1, 11, 8] = INFINITY
    mask[:, 0, :, 10] = np.finfo("float32").min  # all alike
    blocks = {point["block"]: point for point in word_plan.points(operator(case), row(name))}
    assert set(blocks) == {96, 64, 32}
    for i, block in enumerate((96, 32)):
        module = loaded(built(case, name, blocks[block]), tmp_path / f"{i}.so", emulator)
        for bad in (0.0, np.nan, INFINITY):
            arrays[2][0, 66, 0] = bad
            agree(case, module, arrays)


def test_every_point_is_one_and_others_are_refused() -> None:
    cpu = row("sapphirerapids")
    op = operator(Case(**SHARED, queries=100, keys=200, depth=64, width=64))
    points = list(word_plan.points(op, cpu))
    assert {word_plan.refusal(op, point, cpu) for point in points} == {""}
    assert all(point in TiledAttention().space(op, cpu) for point in points)
    tiles = next(point for point in points if MATRIX in point)
    pairs = next(point for point in points if MATRIX not in point)
    wrongs = {"dot": 4, "vectors": 9, "block": 160, "tiles": 9, MATRIX: 3}
    refused = [word_plan.refusal(op, {**tiles, name: value}, cpu) for name, value in wrongs.items()]
    refused += [word_plan.refusal(op, {**pairs, name: value}, cpu) for name, value in {"keys": 40, "rows": 5}.items()]
    assert all(refused) and len(set(refused)) >= 5
    for other in ({"keys": 0}, {"queries": 0}, {"width": 20}, {"operands": ("float16",) * 3}):
        changed = replace(op, **other)
        assert word_plan.default(changed, cpu) is None
        assert all(word_plan.refusal(changed, point, cpu) for point in (tiles, pairs))
    assert "no such instruction" in word_plan.refusal(op, tiles, row("znver4"))
    assert planning.taken_at_once(planning.default(replace(op, keys=0), cpu)) == 1


def test_a_cpu_without_the_instruction_declines_the_plan() -> None:
    case = CASES["bert"]
    plan = planning.default(operator(case), row("sapphirerapids"))
    found = TiledAttention().apply(function(case, "sapphirerapids", plan), to_tvm(resolve("znver4")))
    assert isinstance(found, Declined) and "no instruction" in found.reason


@pytest.mark.usefixtures("code_to_be_read")
def test_the_code_is_made_of_tile_instructions() -> None:
    """Registers are configured once a task and released at its end."""
    case = CASES["bert"]
    plan = planning.default(operator(case), row("sapphirerapids"))
    assert plan.parameters[MATRIX] == 2
    code = built(case, "sapphirerapids", dict(plan.parameters)).mod.inspect_source("asm")
    assert code.count("tdpbf16ps") >= 2 * 4 and "vdpbf16ps" not in code
    assert (code.count("\tldtilecfg"), code.count("\ttilerelease")) == (1, 1)


@pytest.mark.usefixtures("code_to_be_read")
def test_vectors_multiply_pairs_that_stay_in_registers() -> None:
    """No register of sums is spilled in the loops of products, which have as many instructions as their tiles."""
    case = CASES["bert"]
    plan = planning.default(operator(case), row("znver4"))
    code = built(case, "znver4", dict(plan.parameters)).mod.inspect_source("asm")
    assert code.count("vdpbf16ps") >= 2 * 4 * plan.parameters["vectors"] * plan.parameters["rows"]
    assert "vcvtneps2bf16" in code or "vcvtne2ps2bf16" in code


def test_the_exponential_of_weights_is_close_enough_to_be_rounded() -> None:
    """Far from half a step of bfloat16, 1 at 0, and what infinities and NaN give."""
    if "avx512dq" not in machine.cpu().features:
        pytest.skip("this CPU has no avx512dq")
    rows = 1 << 14
    x = te.placeholder((rows, 16), "float32", "x")
    target = to_tvm(resolve("x86-64-v4"))

    def body(ins: Any, outs: Any) -> Any:
        def row(i: Any) -> Any:
            at = [i, ramp(tir.index_const(0), 16)]
            return tvm.tirx.BufferStore(outs[0], word_exponential.exponential(tvm.tirx.BufferLoad(ins[0], at)), at)

        return with_code(word_exponential.CODE, loop(rows, row))

    y = te.extern(x.shape, [x], body, dtype="float32")
    kernel = tvm.compile(te.create_prim_func([x, y]), target, tir_pipeline=pipeline.NAME)
    given = np.linspace(-100, 0, rows * 16).astype("float32")
    given[:4] = -INFINITY, np.nan, INFINITY, -3e38
    out = tvm.runtime.tensor(np.zeros((rows, 16), "float32"))
    kernel["main"](tvm.runtime.tensor(given.reshape(rows, 16)), out)
    got, want = out.numpy().ravel(), np.exp(given.astype("float64"))
    np.testing.assert_array_equal(got[:4], [0, np.nan, INFINITY, 0])
    assert got[-1] == 1
    np.testing.assert_allclose(got[4:], want[4:], rtol=2e-5, atol=1e-37)
