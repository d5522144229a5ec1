"""`cuda.elementwise` and `cuda.transposed`: what they take and decline, their text, and their numbers on a CPU."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm_ffi
from tvm.script import tirx as T

from benchmarks.gpu.build import described
from benchmarks.gpu.child_kernel import check_kernel
from benchmarks.gpu.manifest import Entry
from benchmarks.gpu.moves_cases import TIMED, MovesCase, awkward, prim_func
from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.elementwise.elementwise import Elementwise
from relaxc.schedules.cuda.elementwise.reading import match
from relaxc.schedules.cuda.elementwise.transposed import Transposed
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.benchmarks.on_cpu import on_cpu
from tests.schedules.cuda.simulated import run

TARGET = to_tvm(resolve("cuda-sm90"))
GPU = gpu_of(TARGET)
TEMPLATES = {rule.name: rule for rule in (Elementwise(), Transposed())}


def text_of(case):
    """The text of a case at its default."""
    rule = TEMPLATES[case.rule]
    form = rule.match(prim_func(case))
    assert not isinstance(form, Declined), form.reason
    return rule.kernel_of(form, rule.default(form, GPU), GPU).source


@pytest.mark.parametrize("case", TIMED, ids=lambda case: f"{case.kind}-{case.shape}")
def test_the_first_rule_is_the_one_that_is_meant(case):
    func = prim_func(case)
    first, made = next((rule, made) for rule in RULES if isinstance(made := rule.apply(func, TARGET), Schedule))
    assert first.name == case.rule and TEXT_KERNEL in made.func.attrs
    space = first.points(func, TARGET).values
    assert all(value in space[name] for name, value in made.parameters.items())
    assert tvm_ffi.structural_equal(made.func, first.apply(func, TARGET, made.parameters).func)


def test_axes_that_go_on_behind_each_other_are_one():
    assert match(prim_func(MovesCase("add", (3, 5, 7)))).sizes == (105,)
    assert match(prim_func(MovesCase("transpose", (2, 24, 3, 5), axes=(0, 2, 3, 1)))).sizes == (2, 15, 24)
    assert match(prim_func(MovesCase("append", (2, 3, 8, 64)))).sizes == (2, 3, 9, 64)


@pytest.mark.parametrize(("rows", "lanes"), [(1, 2), (128, 2), (256, 4), (512, 8), (4096, 8)])
def test_few_elements_are_spread_over_more_threads(rows, lanes):
    rule = TEMPLATES["cuda.elementwise"]
    assert rule.default(rule.match(prim_func(MovesCase("gelu", (rows, 3072)))), GPU)["lanes"] == lanes


def test_neighbours_are_read_together_on_both_sides_of_a_boundary():
    text = text_of(MovesCase("append", (32, 12, 512, 64)))
    assert "Vector<__half, 8, 8>" in text and "Vector<float, 8, 8>" in text and "floor_div<int>(" not in text
    text = text_of(MovesCase("rotary", (32, 512, 4096), "float32", "float16", (16, 128)))
    assert text.count("Vector<float, 4, 4>") == 5 and "read_lane(l," not in text


def test_a_boundary_within_a_vector_is_read_by_elements():
    text = text_of(MovesCase("concat", (40_000, 30), axes=(1, 34)))
    assert "Vector<__half, 8, 1>" in text and "read_lane(l," in text


def test_a_vector_is_aligned_to_what_it_reads_at_once():
    text = text_of(MovesCase("slice", (40_000, 100), axes=(1, 4, 100, 1)))
    assert "Vector<__half, 8, 4>" in text


@pytest.mark.parametrize(
    ("case", "group"),
    [
        (MovesCase("transpose", (2, 64, 128), axes=(0, 2, 1), rule="cuda.transposed"), "Tile<__half, 64, 8, 8>"),
        (MovesCase("transpose", (2, 64, 12, 3), axes=(0, 2, 3, 1), rule="cuda.transposed"), "Tile<__half, 64, 4, 8>"),
        (MovesCase("patches", (2, 64, 7, 7), out="float32", rule="cuda.transposed"), "Tile<__half, 64, 1, 4>"),
    ],
)
def test_a_tile_is_read_by_what_its_rows_are_aligned_to(case, group):
    rule = TEMPLATES[case.rule]
    point = {"tile_m": 64, "tile_n": 64, "threads": 128}
    assert group in rule.kernel_of(rule.match(prim_func(case)), point, GPU).source


def test_banks_of_a_tile_meet_at_most_in_pairs():
    """The 32 lanes of a warp read 8 groups of 8 rows by 4 columns of 16-bit values, and write 4 rows of 8 groups."""

    def bank(row, column, columns=64, group=8, step=8):
        groups = columns // group
        return (row * columns + (column // group ^ row // step % groups) * group + column % group) // 2 % 32

    reads = {(bank(8 * j + 3, m), 8 * j, m // 2) for j in range(8) for m in range(4)}
    assert len({found for found, *_ in reads}) == len(reads) == 16
    for row in range(64):
        assert {bank(row, column) for column in range(0, 64, 2)} == set(range(32))


@T.prim_func(s_tir=True)
def two_results(
    x: T.Buffer((T.int64(8),), "float32"), a: T.Buffer((T.int64(8),), "float32"), b: T.Buffer((T.int64(8),), "float32")
):
    for i in range(T.int64(8)):
        with T.sblock("a"):
            vi = T.axis.spatial(T.int64(8), i)
            a[vi] = x[vi] + T.float32(1)
    for i in range(T.int64(8)):
        with T.sblock("b"):
            vi = T.axis.spatial(T.int64(8), i)
            b[vi] = a[vi] + T.float32(1)


@T.prim_func(s_tir=True)
def part_of_the_result(x: T.Buffer((T.int64(8),), "float32"), out: T.Buffer((T.int64(16),), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("out"):
            vi = T.axis.spatial(T.int64(8), i)
            out[vi] = x[vi]


@T.prim_func(s_tir=True)
def in_place(x: T.Buffer((T.int64(8),), "float32"), out: T.Buffer((T.int64(8),), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("out"):
            vi = T.axis.spatial(T.int64(8), i)
            out[vi] = out[T.int64(7) - vi] + x[vi]


@T.prim_func(s_tir=True)
def empty(x: T.Buffer((T.int64(0),), "float32"), out: T.Buffer((T.int64(0),), "float32")):
    for i in range(T.int64(0)):
        with T.sblock("out"):
            vi = T.axis.spatial(T.int64(0), i)
            out[vi] = x[vi]


@T.prim_func(s_tir=True)
def unknown_function(x: T.Buffer((T.int64(8),), "float32"), out: T.Buffer((T.int64(8),), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("out"):
            vi = T.axis.spatial(T.int64(8), i)
            out[vi] = T.acosh(x[vi])


@pytest.mark.parametrize("rule", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (two_results, "2 results"),
        (part_of_the_result, "every element"),
        (in_place, "what it writes|nowhere written"),
        (empty, "no elements"),
        (unknown_function, "acosh|short"),
    ],
)
def test_it_declines(rule, func, reason):
    result = rule.apply(func, TARGET)
    assert isinstance(result, Declined) and any(part in result.reason for part in reason.split("|")), result


def test_short_axes_are_not_transposed_by_tiles():
    func = prim_func(MovesCase("transpose", (2, 3, 64), axes=(0, 2, 1)))
    result = Transposed().apply(func, TARGET)
    assert isinstance(result, Declined) and "short" in result.reason
    assert isinstance(Elementwise().apply(func, TARGET), Schedule)


def simulation(case, folder):
    """The kernel of `case` at its parameters, or those nearest, as a function of torch's tensors."""
    rule, func = TEMPLATES[case.rule], prim_func(case)
    form = rule.match(func)
    assert not isinstance(form, Declined), form.reason
    wanted = {**rule.default(form, GPU), **(case.parameters or {})}
    space = rule.space(form, GPU)
    point = {name: max((c for c in space[name] if c <= wanted[name]), default=space[name][0]) for name in space}
    kernel = rule.kernel_of(form, point, GPU)
    order = [list(func.params).index(buffer) for buffer in kernel.pointers]

    def call(*tensors):
        fenced = [Fenced(tensors[at]) for at in order]
        run(kernel, [each.inside for each in fenced], folder)
        assert all(each.is_whole() for each in fenced)
        tensors[-1].view(-1).view(torch.uint8).copy_(torch.from_numpy(fenced[0].inside))

    return call


class Fenced:
    """The bytes of a tensor, aligned to 16, between bytes that nothing may write: as floats, they are NaN."""

    def __init__(self, tensor):
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        self.all = np.full(len(data) + 144, 255, np.uint8)
        self.start = 64 + -(self.all.ctypes.data + 64) % 16
        self.inside = self.all[self.start : self.start + len(data)]
        self.inside[:] = data

    def is_whole(self):
        return bool((self.all[: self.start] == 255).all() and (self.all[self.start + len(self.inside) :] == 255).all())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    "case", awkward(112, 200), ids=lambda case: f"{case.kind}-{case.shape}-{case.dtype}-{case.out}"
)
def test_its_text_computes_what_is_meant(case, tmp_path, monkeypatch):
    entry = Entry("one", "moves", {"kind_of_case": "odd"}, ["one.so"])
    entry = replace(entry, case=described(entry, case))
    with on_cpu(monkeypatch, simulation(case, tmp_path)):
        found, _ = check_kernel(Path(), entry, repeats=1)
    assert found["right"], found


@T.prim_func(s_tir=True)
def of_the_c_library(x: T.Buffer((T.int64(8),), "float32"), out: T.Buffer((T.int64(8),), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("out"):
            vi = T.axis.spatial(T.int64(8), i)
            out[vi] = T.call_pure_extern("float32", "sinhf", x[vi]) * T.reinterpret(
                "float32", T.reinterpret("uint32", T.float32(0))
            )


def test_functions_of_the_c_library_and_hidden_zeros_are_written_down():
    """TVM would have 0 for a product with zero; the text is nvcc's to read."""
    rule = TEMPLATES["cuda.elementwise"]
    form = rule.match(of_the_c_library)
    assert not isinstance(form, Declined), form.reason
    source = rule.kernel_of(form, rule.default(form, GPU), GPU).source
    assert "made[l] = (sinhf(in.v0[l]) * (0x0.0p+0f));" in source
