"""Reductions of all elements: what they give, and how many threads take part."""

from __future__ import annotations

import pytest
from tvm import relax, tirx
from tvm.relax import op

from benchmarks.gpu import plain_cases
from benchmarks.gpu.fused import one_prim_func
from benchmarks.gpu.plain_cases import PlainCase
from relaxc.schedules.cuda import RULES
from relaxc.schedules.ir import tir
from relaxc.schedules.template import Declined
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.cuda.sequential import assert_means_the_same, scheduled_by

_NAME = "cuda.full_reduction"


def _threads(func):
    """The extents of the bound loops of each kernel, in order."""
    loops = [loop for loop in tir.collect(func.body, tirx.For) if loop.kind == tirx.ForKind.THREAD_BINDING]
    return [(str(loop.thread_binding.thread_tag), int(loop.extent)) for loop in loops]


@pytest.mark.parametrize(
    "case",
    [
        PlainCase("mean", (1, 61, 191), out="float32", steps=("tanh",), axes=(0, 1, 2)),
        PlainCase("sum", (7,), out="float32", axes=(0,)),
        PlainCase("max", (47, 19, 29), out="float32", axes=(0, 1, 2)),
        PlainCase(
            "mean",
            (23, 19, 49),
            out="float32",
            steps=("maximum", "add"),
            others=((23, 1, 49), (23, 1, 1)),
            axes=(0, 1, 2),
        ),
    ],
    ids=str,
)
def test_values(case):
    func = plain_cases.prim_func(case)
    assert_means_the_same(scheduled_by(_NAME, func), func, 1e-4)


def test_two_reductions_and_what_needs_all_of_them():
    """Elements with the mean and the variance of all."""

    def normalized(operands):
        centred = op.subtract(operands[0], op.mean(operands[0]))
        scale = op.rsqrt(op.add(op.mean(op.multiply(centred, centred)), relax.const(1e-5, "float32")))
        return op.multiply(centred, scale)

    func = one_prim_func([(9, 700)], "float32", normalized)
    assert_means_the_same(scheduled_by(_NAME, func), func)


def test_many_blocks_share_the_elements():
    func = scheduled_by(_NAME, plain_cases.prim_func(PlainCase("mean", (507, 19, 149), axes=(0, 1, 2))))
    bound = _threads(func)
    assert ("blockIdx.x", 256) in bound and bound.count(("threadIdx.x", 1024)) >= 2


def test_reductions_of_rows_are_others():
    func = plain_cases.prim_func(PlainCase("mean", (5, 19, 149), axes=(1, 2)))
    rule = next(rule for rule in RULES if rule.name == _NAME)
    assert isinstance(rule.apply(func, to_tvm(resolve("cuda-sm90"))), Declined)
