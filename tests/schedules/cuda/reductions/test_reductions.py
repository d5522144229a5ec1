"""`cuda.reductions`: what it takes and declines, and its numbers on simulated threads at drawn points."""

from __future__ import annotations

import random
from dataclasses import asdict

import numpy as np
import pytest
import torch
from tvm.relax import op

from benchmarks.gpu import conv_cases, conv_device, plain_cases, plain_device
from benchmarks.gpu.build import described as described_case
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.fused import one_prim_func_of
from benchmarks.gpu.manifest import Entry
from benchmarks.gpu.plain_cases import PlainCase
from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.reductions.reductions import AnyReductions
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes.legalize.legalize_places import PLACES_BY_KEYS
from tests.schedules.cuda.simulated import run

TARGET = to_tvm(resolve("cuda-sm90"))
RULE = AnyReductions()


def kernel_of(func, chance):
    """A kernel at a drawn point, or at the default one."""
    form, gpu = RULE.match(func), gpu_of(TARGET)
    assert not isinstance(form, Declined), form.reason
    space = RULE.space(form, gpu)
    for _ in range(50 if chance.random() < 0.8 else 0):
        made = RULE.kernel_of(form, {name: chance.choice(values) for name, values in space.items()}, gpu)
        if not isinstance(made, Declined) and made.threads * made.grid <= 1 << 14 and made.grid >= made.cluster:
            return made
    return RULE.kernel_of(form, RULE.default(form, gpu), gpu)


CASES = (
    PlainCase("softmax", (3, 5, 16, 24), axes=(2,)), PlainCase("softmax", (7, 197), axes=(1,)),
    PlainCase("softmax", (2, 1500), "float32", "float32", axes=(1,)),
    PlainCase("norm", (2, 6, 7, 8), axes=(1, 2, 3)), PlainCase("norm", (3, 4, 5, 6), axes=(2, 3)),
    PlainCase("norm", (2, 9, 24), "bfloat16", "float32", axes=(1,)),
    PlainCase("shares", (2, 7, 5, 16), axes=(1, 2)), PlainCase("shares", (40, 33), steps=("tanh",), axes=(0,)),
    PlainCase("mean", (3, 16, 7, 7), axes=(2, 3)), PlainCase("mean", (3, 7, 7, 16), axes=(1, 2)),
    PlainCase("max", (4, 24, 9), steps=("multiply",), others=((4, 24, 1),), axes=(1,)),
    PlainCase("sum", (37, 50), "float16", "float32", axes=(0, 1)),
)  # fmt: skip


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("at", range(len(CASES)))
def test_numbers_at_drawn_points(at, tmp_path):
    case, chance = CASES[at], random.Random(at)
    described = {**asdict(case), "operands": plain_cases.operands(case)}
    given = plain_device.inputs(described, 1, "cpu")
    want = np.atleast_1d(plain_device.reference(described, given).numpy())
    kernel = kernel_of(plain_cases.prim_func(case), chance)
    arrays = [x.view(torch.uint8).numpy() for x in (torch.zeros(want.shape, dtype=getattr(torch, case.out)), *given)]
    run(kernel, arrays, tmp_path)
    got = torch.from_numpy(arrays[0]).view(getattr(torch, case.out)).double().numpy().reshape(want.shape)
    assert np.abs(got - want).max() <= 4e-3 * max(1.0, np.abs(want).max()), kernel.source[-3000:]


def test_a_nan_reaches_what_is_made_of_it(tmp_path):
    case = PlainCase("max", (4, 24, 9), axes=(1,))
    x = torch.randn(4, 24, 9).half()
    x[2, 5, 3] = float("nan")
    arrays = [each.view(torch.uint8).numpy() for each in (torch.zeros(4, 9).half(), x)]
    run(kernel_of(plain_cases.prim_func(case), random.Random(0)), arrays, tmp_path)
    got = torch.from_numpy(arrays[0]).view(torch.float16)
    assert got.isnan().sum() == 1 and bool(got[2, 3].isnan())


def test_what_is_read_by_neighbours_and_written_otherwise(tmp_path):
    """A convolution of one channel: pixels are neighbours where they are read, filters where they are written."""
    case = ConvCase("taps", (1, 9, 13, 1), 24, (1, 3), (1, 1), (0, 1, 0, 0), (1, 1), "bfloat16", "float32", "bias")
    func = conv_cases.prim_func(case)
    described = described_case(Entry("a", "conv", {"kind_of_case": "random"}), case)
    given = dict(zip(func.params, conv_device.inputs(described, 1, "cpu"), strict=False))
    want = conv_device.reference(described, list(given.values())).numpy()
    for seed in range(3):
        kernel = kernel_of(func, random.Random(seed))
        out = torch.zeros(want.shape, dtype=torch.float32)
        arrays = [x.view(torch.uint8).numpy() for x in (out, *(given[each] for each in kernel.pointers[1:]))]
        run(kernel, arrays, tmp_path)
        got = torch.from_numpy(arrays[0]).view(torch.float32).numpy().reshape(want.shape)
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def test_long_sums_are_made_of_sums_of_blocks(tmp_path):
    case = PlainCase("mean", (40_000, 4), "float32", "float32", axes=(0,))
    x = torch.rand(40_000, 4) + 1000
    form, gpu = RULE.match(plain_cases.prim_func(case)), gpu_of(TARGET)
    point = {"threads": 8, "columns": 4, "teams": 4, "sharers": 1, "cluster": 0}
    arrays = [each.view(torch.uint8).numpy() for each in (torch.zeros(4), x)]
    run(RULE.kernel_of(form, point, gpu), arrays, tmp_path)
    want = x.double().mean(0)
    assert float(((torch.from_numpy(arrays[0]).view(torch.float32) - want) / want).abs().max()) < 1e-6


def test_products_are_left_to_tiles():
    case = PlainCase("grouped", (2, 512, 64, 64), axes=(2, 512, 3, 1))
    assert RULE.apply(plain_cases.prim_func(case), TARGET).reason == "its groups read the same operands, as products do"
    assert RULE.name in [rule.name for rule in RULES]


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_places_are_reduced_by_keys(kind, tmp_path):
    x = torch.randn(3, 5, 40).half()
    x[0, :, 3] = x[0, :, 7] = 9 if kind == "argmax" else -9
    x[1, 2, 5] = float("nan")
    func = one_prim_func_of([("x", x.shape, "float16")], lambda _, xs: getattr(op, kind)(xs[0], 1), (), PLACES_BY_KEYS)
    kernel = kernel_of(func, random.Random(3))
    arrays = [each.view(torch.uint8).numpy() for each in (torch.zeros(3, 40, dtype=torch.int64), x)]
    run(kernel, arrays, tmp_path)
    got = torch.from_numpy(arrays[0]).view(torch.int64).reshape(3, 40)
    assert torch.equal(got, getattr(x.float(), kind)(1))
