"""`cuda.gemm_sm80`: what it takes and declines, its space, its results by its own text on the CPU, and its code."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from benchmarks.gpu.gemm_cases import EPILOGUES, Case, prim_func
from benchmarks.gpu.gemm_sm80_cases import POINTS
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.gemm.form import TF32
from relaxc.schedules.cuda.gemm.gemm_sm80 import GemmSm80, kernel
from relaxc.schedules.cuda.gemm.tile_sm80 import WarpTile, choices, default, refusal
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.gpu import needs_gpu
from tests.schedules.cuda.simulated import run

TARGET = to_tvm(resolve("cuda-sm80"))
HOPPER = to_tvm(resolve("cuda-sm90"))
GPU = gpu_of(TARGET)
RULE = GemmSm80()
BASE = Case(2, 50, 72, 88)


def wanted(case: Case, a: np.ndarray, b: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    """The result in fp64."""
    value = a.astype("float64") @ (b if case.n_major else b.swapaxes(1, 2)).astype("float64")
    value = value * 0.125 if case.epilogue == "scale" else np.maximum(value, 0) if case.epilogue == "relu" else value
    value = value + rest[0].astype("float64") if rest else value
    if case.epilogue == "bias_gelu":
        value = value * (1 + np.vectorize(math.erf)(value / math.sqrt(2))) / 2
    return value + rest[1].astype("float64") if len(rest) > 1 else value


def simulate(case: Case, point: dict[str, int], folder: Path) -> None:
    """Compare the text of the kernel, run on the CPU, with fp64."""
    found = RULE.match(prim_func(case))
    assert not isinstance(found, Declined)
    tile = WarpTile(**point)
    assert not refusal(tile, found)
    draw = np.random.default_rng(case.k)
    shapes = [(case.batch, case.m, case.k), (case.batch, *((case.k, case.n) if case.n_major else (case.n, case.k)))]
    given = [draw.standard_normal(shape).astype(case.dtype) for shape in shapes]
    if case.epilogue.startswith("bias"):
        given.append(draw.standard_normal(case.n).astype("float32"))
    if case.epilogue == "bias_residual":
        given.append(draw.standard_normal((case.batch, case.m, case.n)).astype("float16"))
    out = np.full((case.batch, case.m, case.n), np.nan, case.out)
    run(kernel(found, tile, GPU), [*given[:2], out, *given[2:]], folder)
    near = {"rtol": 1e-6, "atol": 1e-6} if case.dtype == "float32" else {"rtol": 2e-3, "atol": 2e-2}
    np.testing.assert_allclose(out.astype("float64"), wanted(case, *given), **near)


def point(rows: int, columns: int, depth: int, stages: int, slices: int, warp: int) -> dict[str, int]:
    """The parameters by name."""
    return asdict(WarpTile(rows, columns, depth, stages, slices, warp))


FP32 = {"dtype": "float32", "out": "float32"}
# Every layout, tile of a warp, width of a copy, and end of a ring at least once.
SIMULATED = [
    pytest.param(Case(1, 40, 72, 88, epilogue="bias_residual"), point(64, 64, 64, 3, 1, 32), marks=pytest.mark.slow),
    (Case(1, 37, 33, 50, epilogue="bias_gelu", n_major=False), point(32, 32, 32, 2, 2, 32)),
    pytest.param(
        *(Case(2, 33, 35, 29, epilogue="bias_residual", out="float32"), point(32, 64, 64, 4, 4, 64)),
        marks=pytest.mark.slow,
    ),
    pytest.param(Case(1, 3, 260, 132, n_major=False), point(32, 256, 32, 2, 1, 32), marks=pytest.mark.slow),
    pytest.param(Case(1, 130, 20, 36, epilogue="relu"), point(128, 32, 32, 3, 1, 32), marks=pytest.mark.slow),
    pytest.param(Case(1, 70, 66, 200, epilogue="scale"), point(128, 128, 64, 3, 1, 64), marks=pytest.mark.slow),
    pytest.param(Case(1, 20, 130, 64, n_major=False), point(64, 128, 32, 4, 1, 32), marks=pytest.mark.slow),
    (Case(1, 35, 33, 50, n_major=False, **FP32), point(32, 64, 32, 3, 1, 32)),
    (Case(2, 33, 36, 52, epilogue="relu", **FP32), point(32, 32, 64, 2, 2, 32)),
    pytest.param(Case(1, 40, 130, 41, **FP32), point(64, 128, 64, 3, 1, 64), marks=pytest.mark.slow),
    pytest.param(Case(1, 65, 2, 1, n_major=False, out="float32"), point(64, 32, 64, 2, 2, 32), marks=pytest.mark.slow),
]


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("case", "parameters"), SIMULATED)
def test_its_text_computes_products(tmp_path, case, parameters):
    simulate(case, parameters, tmp_path)


def drawn(draw: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers of fp32 of any size, with some that three bf16 do not hold."""
    found = (draw.standard_normal(shape) * 2.0 ** draw.integers(-148, 30, shape)).astype("float32")
    odd = np.float32([np.inf, -np.inf, np.nan, 3.4028234e38, 1e-40, 0.0])
    return np.where(draw.random(shape) < 2e-3, draw.choice(odd, shape), found)


@pytest.mark.parametrize("n_major", [True, False])
def test_numbers_of_any_size_come_out_as_fp32_has_them(tmp_path, n_major):
    draw = np.random.default_rng(3)
    found = RULE.match(prim_func(Case(1, 32, 32, 40, n_major=n_major, **FP32)))
    a, b, out = drawn(draw, 1, 32, 40), drawn(draw, 1, 40, 32), np.zeros((1, 32, 32), "float32")
    a[0, :8] = np.abs(np.nan_to_num(a[0, :8], posinf=1.0)) * np.float32(1e-38)
    given = np.ascontiguousarray(b if n_major else b.swapaxes(1, 2))
    run(kernel(found, WarpTile(64, 32, 32, 2, 1, 32), GPU), [a, given, out], tmp_path)
    with np.errstate(all="ignore"):
        exact = a.astype("float64") @ b.astype("float64")
        wanted, scale = exact.astype("float32"), np.abs(a.astype("float64")) @ np.abs(b.astype("float64"))
    for each in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(each(out), each(wanted))
    finite = np.isfinite(wanted)
    assert finite.sum() > 200 and not finite.all()
    off = np.abs(out[finite].astype("float64") - exact[finite])
    assert (off <= 4e-7 * scale[finite] + 40 * 2.0**-149).all()


def test_in_tf32_operands_are_rounded(tmp_path):
    draw = np.random.default_rng(1)
    func = prim_func(Case(1, 30, 34, 40, **FP32)).with_attr(TF32, 1)
    a, b = draw.standard_normal((1, 30, 40)).astype("float32"), draw.standard_normal((1, 40, 34)).astype("float32")
    out = np.zeros((1, 30, 34), "float32")
    run(kernel(RULE.match(func), WarpTile(64, 32, 64, 2, 1, 32), GPU), [a, b, out], tmp_path)
    rounded = [((x.view("uint32") + 0x1000) & 0xFFFFE000).view("float32").astype("float64") for x in (a, b)]
    np.testing.assert_allclose(out, rounded[0] @ rounded[1], rtol=2e-5, atol=2e-5)


def symbolic_product(dtype: str) -> tvm.tirx.PrimFunc:
    """`[n, s, 24] @ [24, 40] + bias[s, 40] + residual[n, s, 40]` as the passes fuse it."""
    n, s = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("s", "int64")
    shapes = {"a": (n, s, 24), "w": (24, 40), "b": (1, s, 40), "r": (n, s, 40)}
    given = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in shapes.items()]
    block = relax.BlockBuilder()
    with block.function("main", given):
        with block.dataflow():
            product = block.emit(relax.op.matmul(given[0], given[1], "float32"))
            biased = block.emit(relax.op.add(product, given[2]))
            result = block.emit_output(relax.op.add(biased, given[3]))
        block.emit_func_output(result)
    made = tvm.transform.Sequential([
        relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ])(block.get())  # fmt: skip
    (func,) = (each for _, each in made.functions_items() if isinstance(each, tvm.tirx.PrimFunc))
    return func


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("sizes", [(2, 37), (1, 1), (5, 26)])
def test_rows_are_known_at_the_call(tmp_path, sizes):
    func = symbolic_product("float32")
    found, tile = RULE.match(func), WarpTile(64, 32, 32, 2, 1, 32)
    assert isinstance(RULE.apply(func, TARGET), Schedule)
    made = kernel(found, tile, GPU)
    (n, s), draw = sizes, np.random.default_rng(0)
    shapes = [(n, s, 24), (24, 40), (1, s, 40), (n, s, 40)]
    a, w, b, r = (draw.standard_normal(shape).astype("float32") for shape in shapes)
    out = np.full((n, s, 40), np.nan, "float32")
    given = dict(zip(func.params, (a, w, b, r, out), strict=True))
    symbols = {str(size): value for size, value in zip(func.params[0].shape[:2], sizes, strict=True)}
    values = [n * s, *(symbols[str(size)] for size in made.sizes[1:])]
    grid = -(-n * s // 64) * 2
    run(replace(made, grid=grid), [given[each] for each in made.pointers], tmp_path, sizes=values)
    exact = a.astype("float64") @ w.astype("float64") + b + r
    np.testing.assert_allclose(out, exact, rtol=2e-6, atol=2e-6)


@pytest.mark.slow
def test_a_late_warp_finds_its_operands(tmp_path):
    found = RULE.match(prim_func(Case(1, 30, 40, 168)))
    draw = np.random.default_rng(0)
    a, b = draw.standard_normal((1, 30, 168)).astype("float16"), draw.standard_normal((1, 168, 40)).astype("float16")
    out = np.full((1, 30, 40), np.nan, "float16")
    run(kernel(found, WarpTile(32, 64, 32, 3, 1, 32), GPU), [a, b, out], tmp_path, late=1)
    np.testing.assert_allclose(out.astype("float64"), a.astype("float64") @ b.astype("float64"), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize(
    ("epilogue", "target"), [*((each, TARGET) for each in EPILOGUES), (EPILOGUES[0], HOPPER)], ids=str
)
def test_it_takes_products_with_what_is_fused(epilogue, target):
    func = prim_func(replace(BASE, epilogue=epilogue))
    made = RULE.apply(func, target)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    assert "tirx.use_programtic_dependent_launch" not in list(made.func.attrs["tirx.kernel_launch_params"])
    assert tvm_ffi.structural_equal(made.func, RULE.apply(func, target, made.parameters).func)


def test_hopper_s_own_template_goes_before_it():
    from relaxc.schedules.cuda import RULES

    for case, first in ((BASE, "cuda.gemm_sm90"), (replace(BASE, n=71), "cuda.gemm_sm80")):
        func = prim_func(case)
        assert next(rule.name for rule in RULES if isinstance(rule.apply(func, HOPPER), Schedule)) == first


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(1, 1, 64, 64), "one row"),
        (Case(1, 64, 64, 15, dtype="float32", out="float32"), "fewer than 16"),
        (Case(1, 1 << 16, 1 << 16, 64), "2\\^31"),
    ],
)
def test_it_declines(case, reason):
    result = RULE.apply(prim_func(case), TARGET)
    assert isinstance(result, Declined) and re.search(reason, result.reason)


def test_an_odd_number_of_columns_is_read_one_by_one():
    found = RULE.match(prim_func(replace(BASE, n=71, epilogue="bias")))
    assert "load_pair" not in found.epilogue
    assert "load_pair" in RULE.match(prim_func(replace(BASE, n=70, epilogue="bias"))).epilogue


@pytest.mark.parametrize(
    "case", [BASE, Case(1, 4096, 4096, 4096), Case(1, 1, 8, 8), Case(1, 128, 768, 3072), Case(1, 512, 512, 512, **FP32)]
)
def test_every_point_of_the_space_fits_the_oldest_device(case):
    """A CTA of 8.6, 8.9 and 12.0, which run this code too, has 99 KiB."""
    found = RULE.match(prim_func(case))
    space = choices(found)
    given = default(found, GPU)
    assert all(value in space[name] for name, value in given.items())
    assert not refusal(WarpTile(**given), found)
    for values in itertools.product(*space.values()):
        tile = WarpTile(*values)
        if refusal(tile, found):
            continue
        assert tile.shared_bytes <= 99 << 10 and 64 <= tile.threads <= 256 and tile.accumulators <= 128
        assert tile.per_sm(GPU, found) * tile.threads * tile.accumulators < GPU.registers_per_sm
        assert tile.tiles(found) > 0


def test_the_points_of_the_benchmarks_are_of_the_space():
    found = RULE.match(prim_func(BASE))
    assert [each for each in POINTS if refusal(WarpTile(*each), found)] == []


def test_few_tiles_are_shared_by_more_warps():
    tile = WarpTile(**default(RULE.match(prim_func(Case(1, 128, 768, 3072))), GPU))
    large = WarpTile(**default(RULE.match(prim_func(Case(1, 4096, 4096, 4096))), GPU))
    assert tile.slices > 1 and large.slices == 1
    assert large.rows * large.columns >= 64 * 128


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_machine_code_multiplies_on_tensor_cores(dtype, disassembled):
    func = prim_func(replace(BASE, dtype=dtype, out=dtype, epilogue="bias_gelu"))
    sass = disassembled(RULE.apply(func, TARGET).func, resolve("cuda-sm80"))
    assert "HMMA.16816" in sass and "LDGSTS" in sass and "LDSM" in sass


@needs_gpu
def test_numbers_on_the_gpu(tmp_path: Path):
    """Odd shapes with parameters from all over the space, against fp64; equal bits on repetition."""
    from benchmarks.gpu.build import build
    from benchmarks.gpu.measure import measure

    entries = build(tmp_path, suites=["gemm_sm80"])
    rows = {row["id"]: row for row in measure(tmp_path, tmp_path, only="gemm_sm80") if row["status"] == "done"}
    kernels = [entry for entry in entries if entry.suite == "gemm_sm80"]
    assert not [entry.id for entry in kernels if not rows.get(entry.id, {}).get("right")]
