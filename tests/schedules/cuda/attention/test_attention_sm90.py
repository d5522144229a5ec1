"""`cuda.attention_sm90`: what it takes and declines, its space and its code. Its numbers need a GPU: benchmarks/gpu."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
import tvm_ffi

from benchmarks.gpu.attention_cases import AttentionCase, prim_func
from relaxc.schedules.cuda.attention.attention_sm90 import AttentionSm90
from relaxc.schedules.cuda.attention.form import match
from relaxc.schedules.cuda.attention.tile import Tile, choices, default, order
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm

SPEC = resolve("cuda-sm90")
TARGET = to_tvm(SPEC)
RULE = AttentionSm90()
BASE = AttentionCase(2, 4, 200, 333, 64)
MERGED = replace(BASE, keys=200, layout="merged")


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "merged", "flat"])
def test_it_takes_heads_where_they_lie(layout):
    func = prim_func(replace(BASE, keys=200, layout=layout))
    found = match(func)
    assert not isinstance(found, Declined)
    assert (found.queries, found.keys, found.head, found.group) == (200, 200, 64, 1)
    assert found.batch * found.heads == 8
    made = RULE.apply(func, TARGET)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    assert [str(p.dtype) for p in made.func.params] == [str(p.dtype) for p in func.params]
    assert tvm_ffi.structural_equal(made.func, RULE.apply(func, TARGET, made.parameters).func)


def test_slices_of_a_merged_product_begin_at_their_heads():
    found = match(prim_func(replace(MERGED, shared=2)))
    assert not isinstance(found, Declined)
    assert (found.group, found.q.head_at, found.k.head_at, found.v.head_at) == (2, 0, 4, 6)
    assert found.q.rows == (4 + 2 * 2) * 64


def test_scales_and_causal_masks_need_no_code_for_each_score():
    for causal in (None, 0, 133, -5):
        found = match(prim_func(replace(BASE, causal=causal)))
        assert not isinstance(found, Declined)
        assert (found.logit.causal, found.logit.text) == (causal, "")
        assert found.logit.scale == 0.125


@pytest.mark.parametrize("mask", ["keys", "full", "low", "where"])
def test_masks_are_read_for_each_score(mask):
    found = match(prim_func(replace(BASE, mask=mask)))
    assert not isinstance(found, Declined)
    assert "logit(" in found.logit.text and len(found.logit.operands) == 1


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(BASE, head=60), "multiple of 8"),
        (replace(BASE, head=264), "up to 256"),
        (replace(BASE, dtype="float32", out="float32"), "16-bit"),
        (replace(BASE, batch=1 << 8, queries=1 << 14), "2\\^30"),
    ],
)
def test_it_declines(case, reason):
    result = RULE.apply(prim_func(case), TARGET)
    assert isinstance(result, Declined) and re.search(reason, result.reason)
    assert isinstance(RULE.points(prim_func(case), TARGET), Declined)


def test_other_devices_are_declined():
    for name in ('{"kind":"cuda","arch":"sm_90"}', "cuda-sm80"):
        assert isinstance(RULE.apply(prim_func(BASE), to_tvm(resolve(name))), Declined)


@pytest.mark.parametrize("queries", [1, 64, 197, 4096])
@pytest.mark.parametrize("keys", [5, 77, 2048])
@pytest.mark.parametrize("head", [8, 64, 128, 256])
def test_the_default_fits_the_device(queries, keys, head):
    gpu = gpu_of(TARGET)
    attention = replace(match(prim_func(BASE)), queries=queries, keys=keys, head=head)
    parameters = default(attention, gpu)
    space = choices(attention, gpu)
    assert all(value in space[name] for name, value in parameters.items())
    tile = Tile(**parameters)
    assert tile.fits(attention, gpu) and tile.threads <= 512 and tile.grid(attention, gpu) > 0


def test_a_tile_that_does_not_fit_is_declined():
    result = RULE.apply(prim_func(replace(BASE, head=256)), TARGET, {"consumers": 3, "block": 192, "per_sm": 1})
    assert isinstance(result, Declined) and "does not hold" in result.reason


@pytest.mark.parametrize("consumers", [2, 3])
def test_warpgroups_that_move_registers_are_alone_on_an_sm(consumers):
    point = {"consumers": consumers, "block": 96, "per_sm": 2}
    result = RULE.apply(prim_func(replace(BASE, head=24)), TARGET, point)
    assert isinstance(result, Declined) and "does not hold" in result.reason


def test_causal_tiles_are_each_computed_once_and_end_together():
    gpu = gpu_of(TARGET)
    attention = match(prim_func(AttentionCase(2, 16, 2048, 2048, 64, causal=0)))
    tile = Tile(**default(attention, gpu))
    numbers, starts = order(tile, attention, gpu)
    assert sorted(numbers) == list(range(tile.tiles(attention)))
    rows = -(-attention.queries // tile.rows)
    loads = [
        sum(tile.blocks(attention, rows - 1 - number // 32) for number in numbers[first:last])
        for first, last in itertools.pairwise(starts)
    ]
    assert max(loads) - min(loads) <= tile.blocks(attention, rows - 1)


@pytest.mark.slow
def test_a_cubin_with_wgmma_and_no_source(disassembled):
    sass = disassembled(RULE.apply(prim_func(replace(MERGED, mask="keys", causal=0)), TARGET).func)
    assert "HGMMA.64x" in sass and "UTMALDG" in sass


@pytest.mark.slow
@pytest.mark.parametrize("case", [AttentionCase(2, 4, 704, 1, 8, causal=0), AttentionCase(1, 8, 1024, 19, 8, causal=6)])
def test_hidden_keys_are_not_read_from_a_register_that_nothing_wrote(disassembled, case):
    """R1 is the stack's. ptxas 13.0 had keys that are hidden for certain in it, and half of the rows were wrong."""
    case = replace(case, layout="bhsd")
    sass = disassembled(RULE.apply(prim_func(case), TARGET, {"consumers": 1, "block": 48, "per_sm": 3}).func)
    assert not re.findall(r"(?:FMNMX|FFMA|FADD|MUFU\S*) .*\bR1\b.*", sass)
