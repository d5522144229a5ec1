"""`cuda.gemm_sm90` of 8-bit floats: what it takes, its space, what is fused with it, and its machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.gpu.gemm_fp8_cases import EPILOGUES, FP8, Fp8Case, prim_func
from relaxc.schedules.cuda.gemm.form import match
from relaxc.schedules.cuda.gemm.gemm_sm90 import GemmSm90
from relaxc.schedules.cuda.gemm.tile import Tile
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm

TARGET = to_tvm(resolve("cuda-sm90"))
RULE = GemmSm90()
BASE = Fp8Case(100, 72, 272)


def of_epilogue(epilogue: str) -> Fp8Case:
    return replace(BASE, epilogue=epilogue, out=FP8 if epilogue == "quantize" else "float16")


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_it_takes_products_with_what_is_fused(epilogue: str) -> None:
    func = prim_func(of_epilogue(epilogue))
    found = match(func)
    assert not isinstance(found, Declined)
    assert (found.m, found.n, found.k, found.n_major, found.sums, found.atom) == (100, 72, 272, False, "float32", 128)
    made = RULE.apply(func, TARGET, RULE.proposed(func, TARGET))
    assert isinstance(made, Schedule) and made.parameters["partial"] >= 1
    assert '"uint8", 3' in str(made.func), "the copy engine moves bytes"


@pytest.mark.parametrize(("case", "reason"), [(replace(BASE, n=60), "multiples of 8"), (replace(BASE, k=24), "16 of")])
def test_it_declines(case: Fp8Case, reason: str) -> None:
    found = match(prim_func(case))
    assert isinstance(found, Declined) and reason in found.reason


def test_sums_in_two_parts_fit_the_registers() -> None:
    """Consumers that get registers from the producer have 232 each, of at most two warpgroups."""
    found = match(prim_func(Fp8Case(4096, 4096, 4096)))
    space = RULE.space(found, gpu_of(TARGET))
    assert 0 not in space["splits"] and max(space["rows"]) == 128 and max(space["columns"]) == 192
    widest = Tile(128, 192, 1, 1, 1, 8, partial=1)
    assert widest.accumulators == 192 and widest.moves_registers and widest.per_sm == 1


def test_products_of_other_dtypes_have_no_partial_sums() -> None:
    from benchmarks.gpu.gemm_cases import Case
    from benchmarks.gpu.gemm_cases import prim_func as of_floats

    made = RULE.apply(of_floats(Case(1, 128, 128, 128)), TARGET)
    assert "partial" not in made.parameters and "PARTIAL_STEPS = 0" in str(made.func)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("partial", [1, 2, 4])
def test_the_machine_code_multiplies_on_tensor_cores(partial: int, disassembled) -> None:
    func = prim_func(replace(of_epilogue("quantize"), m=256, n=256, k=2048))
    point = {**RULE.proposed(func, TARGET), "partial": partial}
    sass = disassembled(RULE.apply(func, TARGET, point).func)
    products = re.findall(r"QGMMA\.64x\d+x32\.F32\.E4M3\.E4M3", sass)
    assert products and "UTMALDG" in sass and "STL" not in sass
    assert "F2FP.SATFINITE.E4M3" in sass
