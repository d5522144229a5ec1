"""`cuda.attention_sm80`: what it takes and declines, its space, its results by its own text on the CPU, its code."""

from __future__ import annotations

import itertools
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from benchmarks.gpu import attention_device
from benchmarks.gpu.attention_cases import LAYOUTS, AttentionCase, prim_func
from benchmarks.gpu.attention_sm80_cases import POINTS
from relaxc.schedules.cuda.attention.attention_sm80 import AttentionSm80, kernel
from relaxc.schedules.cuda.attention.tile_sm80 import WarpTile, choices, default, refusal
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.gpu import needs_gpu
from tests.schedules.cuda.simulated import run

SPEC = resolve("cuda-sm80")
TARGET, HOPPER = to_tvm(SPEC), to_tvm(resolve("cuda-sm90"))
GPU = gpu_of(TARGET)
RULE = AttentionSm80()
BASE = AttentionCase(2, 4, 200, 200, 64)
SLOW = pytest.mark.slow


def simulate(case: AttentionCase, tile: WarpTile, folder: Path, late: int = -1) -> None:
    """Compare the text of the kernel, run on the CPU, with fp64."""
    found = RULE.match(prim_func(case))
    assert not isinstance(found, Declined) and not refusal(tile, found, GPU)
    said = {**asdict(case), "shapes": case.shapes(), "result": case.result(), "numbers": case.numbers()}
    given = attention_device.inputs(said, 1, "cpu")
    wanted = attention_device.reference(said, given).double().numpy()
    arrays = {f"x{at}": each.numpy() for at, each in enumerate(given)}
    out = np.full(case.result(), 77 if case.step else np.nan, case.out)
    launch = kernel(found, tile, GPU)
    run(launch, [arrays.get(str(buffer.name), out) for buffer in launch.pointers], folder, late)
    found_numbers = out.astype("float64")
    if not case.step:
        np.testing.assert_allclose(found_numbers, wanted, rtol=4e-3, atol=4e-3)
        return
    off = np.abs(found_numbers - wanted)
    assert off.max() <= 1.01 and (off > 0.5).mean() < 0.02  # on a boundary between two steps, either is right


# Every layout, mask, warp, length of a ring and share of the keys at least once.
SIMULATED = [
    (AttentionCase(1, 2, 20, 40, 24, masked="zero", causal=-3), WarpTile(32, 16, 16, 1, 1)),
    pytest.param(
        *(AttentionCase(2, 2, 33, 70, 40, shared=1, causal=37, layout="bhsd"), WarpTile(64, 32, 16, 2, 1)), marks=SLOW
    ),
    pytest.param(
        AttentionCase(1, 2, 70, 70, 24, layout="merged", causal=0, masked="zero", out="float32"),
        WarpTile(32, 16, 48, 2, 1),
        marks=SLOW,
    ),
    (AttentionCase(1, 2, 20, 37, 32, rounded=0.003, step=0.01, out="uint8"), WarpTile(32, 16, 48, 1, 1)),
    pytest.param(
        AttentionCase(1, 2, 20, 70, 40, scored=0.05, rounded=0.002, step=0.01, out="int8", mask="keys"),
        WarpTile(32, 16, 32, 2, 1),
        marks=SLOW,
    ),
    pytest.param(
        AttentionCase(1, 2, 33, 50, 64, rounded=0.004, causal=17, masked="zero"), WarpTile(64, 32, 16, 1, 1), marks=SLOW
    ),
    (AttentionCase(1, 2, 3, 37, 32, page=16, layout="bhsd"), WarpTile(16, 16, 16, 1, 2)),
    pytest.param(AttentionCase(2, 4, 1, 70, 64, shared=2, page=1), WarpTile(16, 16, 32, 2, 2), marks=SLOW),
    pytest.param(
        AttentionCase(2, 4, 3, 50, 40, shared=2, page=24, layout="bshd", mask="keys"),
        WarpTile(16, 16, 16, 2, 2),
        marks=SLOW,
    ),
    pytest.param(
        AttentionCase(2, 4, 1, 200, 64, shared=2, page=256, layout="bhsd", mask="keys"),
        WarpTile(16, 16, 64, 1, 4),
        marks=SLOW,
    ),
    pytest.param(AttentionCase(1, 4, 1, 100, 64, step=0.01, out="int8"), WarpTile(16, 16, 16, 1, 4), marks=SLOW),
    pytest.param(AttentionCase(1, 4, 1, 100, 64, shared=2), WarpTile(16, 16, 16, 1, 4), marks=SLOW),
    pytest.param(AttentionCase(1, 2, 20, 90, 72, mask="full", masked="zero"), WarpTile(32, 32, 32, 2, 2), marks=SLOW),
    pytest.param(AttentionCase(1, 2, 20, 37, 128, mask="where"), WarpTile(32, 32, 32, 1, 4), marks=SLOW),
    pytest.param(AttentionCase(1, 2, 20, 37, 96, mask="keys"), WarpTile(32, 16, 64, 1, 1), marks=SLOW),
    pytest.param(AttentionCase(1, 1, 9, 19, 256, mask="low", causal=5), WarpTile(16, 16, 16, 1, 2), marks=SLOW),
    pytest.param(AttentionCase(2, 2, 50, 30, 32, layout="flat"), WarpTile(128, 32, 32, 1, 1), marks=SLOW),
]


@pytest.mark.parametrize(("case", "tile"), SIMULATED)
def test_its_text_computes_attention(tmp_path, case, tile):
    simulate(case, tile, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", [0, 16])
def test_heads_that_share_keys_and_have_a_mask_each(tmp_path, page):
    """One tile has them all, and asks for the mask of each."""
    case = AttentionCase(2, 4, 1, 70, 64, shared=2, layout="bhsd", mask="low", page=page)
    assert RULE.match(prim_func(case)).packed
    simulate(case, WarpTile(16, 16, 32, 2, 2), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
def test_a_late_warp_finds_its_keys(tmp_path, stages):
    simulate(AttentionCase(1, 1, 30, 100, 32), WarpTile(32, 16, 16, stages, 1), tmp_path, late=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", [TARGET, HOPPER], ids=["sm_80", "sm_90a"])
def test_it_takes_heads_where_they_lie(layout, target):
    func = prim_func(replace(BASE, layout=layout))
    made = RULE.apply(func, target)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    assert [str(p.dtype) for p in made.func.params] == [str(p.dtype) for p in func.params]
    assert tvm_ffi.structural_equal(made.func, RULE.apply(func, target, made.parameters).func)


def test_hopper_s_own_template_goes_before_it():
    from relaxc.schedules.cuda import RULES

    func = prim_func(BASE)
    for target, first in ((HOPPER, "cuda.attention_sm90"), (TARGET, "cuda.attention_sm80")):
        assert next(rule.name for rule in RULES if isinstance(rule.apply(func, target), Schedule)) == first


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(BASE, head=60), "multiple of 8"),
        (replace(BASE, head=264), "up to 256"),
        (replace(BASE, dtype="float32", out="float32"), "16-bit"),
        (replace(BASE, batch=1 << 8, queries=1 << 14, keys=333), "2\\^30"),
    ],
)
def test_it_declines(case, reason):
    result = RULE.apply(prim_func(case), TARGET)
    assert isinstance(result, Declined) and re.search(reason, result.reason)
    assert isinstance(RULE.points(prim_func(case), TARGET), Declined)


def test_single_queries_of_heads_that_share_keys_are_one_tile():
    found = RULE.match(prim_func(AttentionCase(1, 32, 1, 4096, 128, shared=8, layout="bhsd")))
    assert not isinstance(found, Declined) and (found.heads, found.queries, found.group) == (8, 4, 1)
    tile = WarpTile(**default(found, GPU))
    assert tile.rows == 16 and tile.slices > 1


@pytest.mark.parametrize("queries", [1, 64, 197, 4096])
@pytest.mark.parametrize("keys", [5, 77, 2048])
@pytest.mark.parametrize("head", [8, 64, 128, 256])
@pytest.mark.parametrize("rounded", ["", "some"], ids=["", "rounded"])
@pytest.mark.parametrize("target", [TARGET, HOPPER], ids=["sm_80", "sm_90a"])
def test_the_default_fits_every_device_that_runs_the_code(queries, keys, head, rounded, target):
    gpu = gpu_of(target)
    attention = replace(RULE.match(prim_func(BASE)), queries=queries, keys=keys, head=head, rounded=rounded)
    parameters = default(attention, gpu)
    space = choices(attention, gpu)
    assert all(value in space[name] for name, value in parameters.items())
    tile = WarpTile(**parameters)
    assert not refusal(tile, attention, gpu) and 64 <= tile.threads <= 256
    assert tile.shared_bytes(attention) <= gpu.shared_bytes_of_code
    assert tile.per_sm(attention, gpu) * tile.threads * tile.registers(attention) <= gpu.registers_per_sm


def test_every_point_of_the_space_is_a_tile_or_refused():
    attention = RULE.match(prim_func(BASE))
    tiles = [WarpTile(*point) for point in itertools.product(*choices(attention, GPU).values())]
    taken = [tile for tile in tiles if not refusal(tile, attention, GPU)]
    assert 50 < len(taken) < len(tiles)
    assert all(tile.shared_bytes(attention) <= 99 << 10 and tile.threads <= 256 for tile in taken)
    reasons = {refusal(tile, attention, GPU) for tile in tiles} - {""}
    assert len(reasons) > 3
    assert all(tile.slices == 1 or tile.rows == tile.warp for tile in taken)  # a slice meets by __syncwarp


def test_the_points_of_the_benchmarks_are_of_the_space():
    for case, points in POINTS.items():
        attention = RULE.match(prim_func(case))
        assert [point for point in points if refusal(WarpTile(*point), attention, GPU)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase(4, 32, 2048, 2048, 128, causal=0),
        AttentionCase(1, 16, 4096, 4096, 64, dtype="bfloat16"),
        AttentionCase(2, 16, 1024, 1024, 256, mask="keys"),
        AttentionCase(1, 32, 1, 4096, 40, shared=8, layout="bhsd"),
    ],
)
def test_the_machine_code_multiplies_on_tensor_cores_and_spills_nothing(case, disassembled):
    sass = disassembled(RULE.apply(prim_func(case), TARGET).func, SPEC)
    assert "HMMA.16816.F32" in sass and "LDGSTS" in sass and "LDSM.16.MT88" in sass
    assert "LDL" not in sass and "STL" not in sass


@needs_gpu
def test_numbers_on_the_gpu(tmp_path: Path):
    """Odd sizes with parameters from all over the space, against fp64; equal bits on repetition."""
    from benchmarks.gpu.build import build
    from benchmarks.gpu.measure import measure

    entries = build(tmp_path, suites=["attention_sm80"])
    rows = {row["id"]: row for row in measure(tmp_path, tmp_path, only="attention_sm80") if row["status"] == "done"}
    kernels = [entry for entry in entries if entry.suite == "attention_sm80"]
    assert not [entry.id for entry in kernels if not rows.get(entry.id, {}).get("right")]
