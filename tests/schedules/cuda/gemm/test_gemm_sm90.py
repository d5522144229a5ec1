"""`cuda.gemm_sm90`: what it takes and declines, its space, its code, and its numbers where there is a GPU."""

from __future__ import annotations

import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tvm_ffi

from benchmarks.gpu.gemm_cases import EPILOGUES, Case, prim_func
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.gemm.form import match
from relaxc.schedules.cuda.gemm.gemm_sm90 import GemmSm90
from relaxc.schedules.cuda.gemm.tile import Tile, refusal
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.gpu import needs_gpu

SPEC = resolve("cuda-sm90")
TARGET = to_tvm(SPEC)
RULE = GemmSm90()
BASE = Case(2, 100, 72, 136)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("n_major", [True, False])
def test_it_takes_products_with_what_is_fused(epilogue, n_major):
    case = replace(BASE, epilogue=epilogue, n_major=n_major)
    func = prim_func(case)
    found = match(func)
    assert not isinstance(found, Declined)
    assert (found.batch, found.m, found.n, found.k, found.n_major) == (2, 100, 72, 136, n_major)
    assert found.expensive == ("gelu" in epilogue or "silu" in epilogue)
    made = RULE.apply(func, TARGET)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    assert [str(p.dtype) for p in made.func.params] == [str(p.dtype) for p in func.params]
    again = RULE.apply(func, TARGET, made.parameters)
    assert tvm_ffi.structural_equal(made.func, again.func)


def test_each_value_of_the_epilogue_is_computed_once():
    found = match(prim_func(replace(BASE, epilogue="bias_tanh_gelu")))
    assert found.epilogue.count("load_pair") == 1 and found.epilogue.count("gelu_fast") == 2
    exact = match(prim_func(replace(BASE, epilogue="bias_tanh_gelu", out="float32")))
    assert exact.epilogue.count("tanhf(") == 2 and "fast" not in exact.epilogue


def test_rows_of_several_axes_are_one():
    found = match(prim_func(Case(1, 128, 64, 64)))
    assert (found.batch, found.m) == (1, 128)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(1, 64, 60, 64), "multiples of 8"),
        (Case(1, 64, 64, 12), "multiples of 8"),
        (Case(1, 64, 64, 64, dtype="float32", out="float32"), "16-bit"),
        (Case(1, 1 << 16, 1 << 16, 64), "2\\^31"),
    ],
)
def test_it_declines(case, reason):
    result = RULE.apply(prim_func(case), TARGET)
    assert isinstance(result, Declined) and re.search(reason, result.reason)
    assert isinstance(RULE.points(prim_func(case), TARGET), Declined)


def test_other_devices_are_declined():
    for name in ('{"kind":"cuda","arch":"sm_90"}', "cuda-sm80", '{"kind":"cuda","arch":"sm_100a"}'):
        assert isinstance(RULE.apply(prim_func(BASE), to_tvm(resolve(name))), Declined)


def test_parameters_outside_of_the_space_are_refused():
    made = RULE.apply(prim_func(BASE), TARGET)
    with pytest.raises(ValueError, match="rows may be"):
        RULE.apply(prim_func(BASE), TARGET, {**made.parameters, "rows": 96})


@pytest.mark.parametrize("case", [BASE, Case(1, 4096, 4096, 4096), Case(1, 1, 8, 8), Case(1, 512, 4096, 1024)])
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_every_point_of_the_space_fits_the_device(case, out):
    gpu = gpu_of(TARGET)
    func = prim_func(replace(case, out=out))
    space = RULE.points(func, TARGET).values
    default = RULE.apply(func, TARGET)
    assert all(value in space[name] for name, value in default.parameters.items())
    gemm = match(func)
    for point in itertools.product(*space.values()):
        tile = Tile.of(dict(zip(space, point, strict=True)))
        if refusal(tile):
            continue
        stages, atoms = tile.ring(gpu, out == "float16")
        assert stages >= 2 and atoms in (1, tile.atoms)
        assert tile.shared_bytes(gpu, out == "float16") <= gpu.shared_bytes_per_block
        assert tile.threads <= 512 and tile.accumulators <= 128
        # What the warpgroups are given of an SM's registers, or all threads of a kernel that gives none away.
        consumer, producer = (160, 32) if tile.consumers == 3 else (232, 40)
        given = 128 * (tile.consumers * consumer + producer) if tile.moves_registers else 0
        assert given <= gpu.registers_per_sm and tile.accumulators <= consumer - 40
        assert tile.per_sm * tile.shared_bytes(gpu, out == "float16") <= gpu.shared_bytes_per_sm - tile.per_sm * 1024
        assert tile.columns // 8 % tile.parts == 0 and tile.cluster * tile.parts <= 8
        assert tile.grid(gemm, gpu) % (tile.cluster * tile.parts) == 0 and tile.grid(gemm, gpu) > 0


@pytest.mark.parametrize("rows", [64, 128, 192])
def test_rows_are_copied_in_pieces_of_which_some_may_lie_behind_the_last(rows):
    case = Case(1, 197, 256, 128)
    point = {"rows": rows, "columns": 128, "atoms": 1, "splits": 1, "cluster": 1, "group": 8, "ahead": 0, "share": 1}
    made = RULE.kernel_of(match(prim_func(case)), point, gpu_of(TARGET))
    assert [each.rows for each in made.maps[:2]] == [32, 64] and rows % 32 == 0


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_machine_code_multiplies_on_tensor_cores(dtype, disassembled):
    made = RULE.apply(prim_func(replace(BASE, dtype=dtype, out=dtype, epilogue="bias_gelu")), TARGET)
    sass = disassembled(made.func)
    assert "HGMMA.64x" in sass and "UTMALDG" in sass


@needs_gpu
def test_numbers_on_the_gpu(tmp_path: Path):
    """Odd shapes with parameters from all over the space, against fp64; equal bits on repetition."""
    from benchmarks.gpu.build import build
    from benchmarks.gpu.measure import measure

    entries = build(tmp_path, suites=["gemm"])
    rows = {row["id"]: row for row in measure(tmp_path, tmp_path, only="gemm") if row["status"] == "done"}
    kernels = [entry for entry in entries if entry.suite == "gemm"]
    assert not [entry.id for entry in kernels if not rows.get(entry.id, {}).get("right")]
