"""`cuda.decoding_sm90`: what it takes when it is asked for a point, and its arithmetic. Its kernels need a GPU."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi

from benchmarks.gpu.attention_cases import AttentionCase, prim_func
from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.attention.attention_sm80 import AttentionSm80
from relaxc.schedules.cuda.attention.decoding_sm90 import DecodingSm90, packed
from relaxc.schedules.cuda.attention.form import match
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL, text_of
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.apply import finish
from relaxc.service.lowering.build import build_kernel
from relaxc.service.lowering.target import resolve, to_tvm

SPEC = resolve("cuda-sm90")
TARGET = to_tvm(SPEC)
RULE = DecodingSm90()
STEP = AttentionCase(2, 8, 1, 1000, 64, shared=2, layout="bhsd")
POINT = {"splits": 4, "block": 64, "share": 1}


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (STEP, "cuda.decoding_sm90"),
        (replace(STEP, batch=32, shared=8), "cuda.attention_sm90"),
        (AttentionCase(32, 12, 16, 512, 64, layout="bhsd"), "cuda.attention_sm90"),
        (AttentionCase(32, 32, 1, 4096, 128, shared=8, layout="bhsd"), "cuda.decoding_sm90"),
    ],
    ids=["few", "one for each SM", "several for each SM", "shared keys"],
)
def test_it_comes_first_unless_every_sm_has_queries_of_its_own(case, name):
    func = prim_func(case)
    first = next(rule for rule in RULES if not isinstance(rule.apply(func, TARGET), Declined))
    assert first.name == name
    made = RULE.apply(func, TARGET, POINT)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    assert tvm_ffi.structural_equal(made.func, RULE.apply(func, TARGET, POINT).func)


@pytest.mark.parametrize(
    ("batch", "heads", "keys", "head", "splits", "block"),
    [
        (1, 8, 4096, 128, 8, 64), (1, 12, 512, 64, 8, 64), (1, 16, 4096, 64, 4, 128), (1, 20, 4096, 128, 4, 64),
        (2, 12, 2048, 64, 4, 128), (2, 16, 2048, 64, 2, 128), (2, 17, 4096, 64, 2, 128), (1, 40, 4096, 128, 2, 64),
        (4, 16, 4096, 64, 2, 128), (4, 16, 1024, 64, 2, 128), (6, 12, 2048, 64, 4, 128), (8, 12, 512, 64, 2, 128),
        (8, 12, 4096, 64, 4, 128), (8, 16, 1024, 64, 2, 128),
    ],
)  # fmt: skip
def test_its_default_is_what_a_gpu_found_fastest(batch, heads, keys, head, splits, block):
    """Of the 12 points of each shape, on an H100 (docs/benchmarks_gpu.md), within 2 %."""
    func = prim_func(AttentionCase(batch, heads, 1, keys, head, layout="bhsd"))
    assert dict(RULE.apply(func, TARGET).parameters) == {"splits": splits, "block": block, "share": 2}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(STEP, queries=65), "64 queries"),
        (replace(STEP, keys=255), "256 keys"),
        (replace(STEP, head=60), "multiple of 8"),
    ],
)
def test_it_declines(case, reason):
    result = RULE.apply(prim_func(case), TARGET, POINT)
    assert isinstance(result, Declined) and reason in result.reason


def test_every_cta_of_a_cluster_has_keys():
    func = prim_func(replace(STEP, keys=260))
    assert isinstance(RULE.apply(func, TARGET, {"splits": 4, "block": 64, "share": 1}), Schedule)
    assert isinstance(RULE.apply(func, TARGET, {"splits": 8, "block": 64, "share": 1}), Declined)


def test_heads_that_share_keys_are_queries_of_one_tile():
    found = match(prim_func(STEP))
    rows = packed(found)
    assert (found.heads, found.group, found.queries) == (16, 4, 1)  # both batches'
    assert (rows.heads, rows.group, rows.queries) == (4, 1, 4)
    assert (rows.q.rows, rows.q.heads, rows.out.rows, rows.out.heads) == (64, 256, 64, 256)
    assert rows.q.batches == found.q.batches and rows.k == found.k


def test_a_logit_asks_for_the_head_of_a_packed_row():
    rows = packed(match(prim_func(replace(STEP, mask="low"))))
    assert rows.packed and (rows.heads, rows.queries) == (4, 4) and "PACKED ? m : 0" in rows.logit.text


@pytest.mark.parametrize("case", [replace(STEP, queries=2), replace(STEP, causal=5)])
def test_heads_stay_where_their_queries_or_what_they_see_differ(case):
    found = match(prim_func(case))
    assert packed(found) == found


@pytest.mark.parametrize("head", [8, 64, 128, 256])
@pytest.mark.parametrize("keys", [256, 513, 16384])
def test_the_proposed_point_is_in_the_space_and_fits(head, keys):
    func = prim_func(replace(STEP, head=head, keys=keys))
    point, space = RULE.proposed(func, TARGET), RULE.points(func, TARGET).values
    assert all(value in space[name] for name, value in point.items())
    made = RULE.apply(func, TARGET, point)
    assert isinstance(made, Schedule)
    found = packed(match(func))
    assert RULE.kernel_of(found, point, gpu_of(TARGET)).shared_bytes <= gpu_of(TARGET).shared_bytes_per_block


@pytest.mark.parametrize(
    ("case", "point"),
    [
        (AttentionCase(1, 32, 1, 4096, 128, shared=8), (8, 64, 2)),
        (AttentionCase(32, 32, 1, 4096, 128, shared=8), (2, 64, 2)),
        (replace(STEP, keys=260), (4, 64, 2)),  # five blocks
        (replace(STEP, head=256, queries=16), (4, 64, 1)),
        (AttentionCase(1, 8, 64, 4096, 128), (8, 128, 1)),
    ],
    ids=["one sequence", "many", "few keys", "no room for two", "a warpgroup"],
)
def test_two_ctas_lie_on_an_sm_where_warps_multiply(case, point):
    assert tuple(RULE.proposed(prim_func(case), TARGET).values()) == point


@pytest.mark.parametrize("queries", [1, 16, 64])
@pytest.mark.parametrize("head", [64, 256])
def test_what_the_ctas_send_each_other_fits_where_keys_were(queries, head):
    form, gpu = RULE.match(prim_func(replace(STEP, queries=queries, head=head))), gpu_of(TARGET)
    for values in itertools.product(*RULE.space(form, gpu).values()):
        made = RULE.kernel_of(form, dict(zip(("splits", "block", "share"), values, strict=True)), gpu)
        if isinstance(made, Declined):
            continue
        splits, block, _ = values
        stages = int(made.source.split("constexpr int STAGES = ")[1].split(";")[0])
        parts = block // 16 + 1 if queries <= 16 else 1
        sums = -(-parts * queries * (head + 2) * 4 // 16) * 16
        letters = splits * (-(-queries * head // 4 // splits) + queries) * 16
        assert sums + letters <= 2 * stages * block * -(-head // 64) * 128


@pytest.fixture(scope="module")
def merge(tmp_path_factory):
    """`merge.cuh` as the host's compiler makes it, for four parts: (tops, totals) → the whole sum, and the weights."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    folder = tmp_path_factory.mktemp("merge")
    source = (
        "#include <cmath>\n#define DEV static inline\nconstexpr float LOG2_SCALE = 1.44269504f * 0.125f;\n"
        "DEV float exp2_fast(float x) { return exp2f(x); }\n"
        "using std::fmaxf; using std::fmaf;\n"
        + text_of("relaxc.schedules.cuda.attention", "merge.cuh")
        + 'extern "C" float '
        "merge4(const float (&tops)[4], const float (&totals)[4], float (&weights)[4]) "
        "{ return merge(tops, totals, weights); }\n"
    )
    (folder / "merge.cpp").write_text(source)
    command = [
        "g++",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wno-unknown-pragmas",
        "-o",
        folder / "merge.so",
        folder / "merge.cpp",
    ]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(folder / "merge.so")).merge4
    function.restype = ctypes.c_float

    def call(tops, totals):
        weights = np.full(4, np.nan, np.float32)
        given = [np.ascontiguousarray(each, np.float32) for each in (tops, totals)]
        pointers = [each.ctypes.data_as(ctypes.c_void_p) for each in (*given, weights)]
        return function(*pointers), weights

    return call


def softmax_of_parts(scores, values, merge, bounds):
    """The kernel's arithmetic for one row: a softmax of each part in fp32, relative to its own largest logit."""
    scale = np.float32(math.log2(math.e) * 0.125)
    tops, totals, sums = [], [], []
    for first, last in bounds:
        part = scores[first:last]
        top = part.max(initial=-np.inf)
        powers = np.exp2((part - (0 if top == -np.inf else top)) * scale).astype(np.float32)
        tops.append(top)
        totals.append(powers.sum())
        sums.append(powers @ values[first:last])
    whole, weights = merge(tops, totals)
    with np.errstate(invalid="ignore", divide="ignore"):
        return sum(weight * each for weight, each in zip(weights, sums, strict=True)) * (np.float32(1) / whole)


@pytest.mark.parametrize("hidden", ["none", "a part", "all but one", "least float", "all"])
def test_the_parts_add_up_to_the_softmax_of_all(hidden, merge):
    draw = np.random.default_rng(0)
    keys, blocks, splits = 1000, 16, 4
    scores, values = (draw.standard_normal(shape).astype(np.float32) for shape in (keys, (keys, 8)))
    scores *= 40
    if hidden in ("a part", "all but one", "all"):
        scores[: {"a part": 300, "all but one": 999, "all": 1000}[hidden]] = -np.inf
    if hidden == "least float":
        scores[100:] = np.finfo(np.float32).min
    firsts = [min(rank * blocks // splits * 64, keys) for rank in range(splits + 1)]
    got = softmax_of_parts(scores, values, merge, list(itertools.pairwise(firsts)))
    if hidden == "all":
        assert np.isnan(got).all()
        return
    exact = scores.astype(np.float64) * 0.125
    powers = np.exp(exact - exact.max())
    np.testing.assert_allclose(got, powers @ values / powers.sum(), rtol=2e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    "case",
    [
        STEP,
        replace(STEP, mask="keys", queries=16, causal=984),
        replace(STEP, head=256, dtype="bfloat16", out="float32", masked="zero"),
    ],
)
def test_it_becomes_machine_code(case, tmp_path):
    made = RULE.apply(prim_func(case), TARGET, {"splits": 2, "block": 64, "share": 1})
    build_kernel(finish(made.func, SPEC, 2), SPEC, tmp_path / "kernel.so")
    assert (tmp_path / "kernel.so").stat().st_size < 120_000


@pytest.mark.parametrize(
    ("queries", "block", "warps", "rows"), [(1, 64, 4, 16), (16, 128, 8, 16), (17, 128, 4, 64), (64, 64, 4, 64)]
)
def test_few_queries_are_multiplied_by_warps_and_more_by_a_warpgroup(queries, block, warps, rows):
    form = RULE.match(prim_func(replace(STEP, queries=queries)))
    made = RULE.kernel_of(form, {"splits": 2, "block": block, "share": 1}, gpu_of(TARGET))
    assert made.threads == 32 * (warps + 1) and made.maps[0].rows == rows
    assert ("wgmma.mma_async" in made.source.split("namespace NAME_")[1]) == (rows == 64)


def test_two_ctas_an_sm_have_half_of_its_shared_memory_each():
    form, gpu = RULE.match(prim_func(replace(STEP, head=128))), gpu_of(TARGET)
    made = RULE.kernel_of(form, {"splits": 2, "block": 64, "share": 2}, gpu)
    assert made.per_sm == 2 and 2 * (made.shared_bytes + 1024) <= gpu.shared_bytes_per_sm


@pytest.mark.parametrize(
    ("page", "step"), [(8, 8), (16, 16), (24, 8), (64, 64), (256, 128)], ids=lambda value: str(value)
)
def test_pages_are_copied_by_what_lies_in_one_piece(page, step):
    case = AttentionCase(2, 8, 1, page * 96, 128, shared=2, page=page, layout="bhsd")
    form = RULE.match(prim_func(case))
    assert not isinstance(form, Declined)
    made = RULE.kernel_of(form, {"splits": 4, "block": 128, "share": 1}, gpu_of(TARGET))
    assert not isinstance(made, Declined)
    assert f"constexpr int K_STEP = {step};" in made.source and f"constexpr int V_PAGE = {page};" in made.source
    assert [each.rows for each in made.maps[1:]] == [step, step]


def test_pages_that_the_copy_engine_would_turn_wrongly_are_another_template_s():
    case = AttentionCase(2, 8, 1, 20 * 20, 128, shared=2, page=20)
    result = RULE.apply(prim_func(case), TARGET)
    assert isinstance(result, Declined) and "multiples of 8" in result.reason
    assert isinstance(AttentionSm80().apply(prim_func(case), TARGET), Schedule)
